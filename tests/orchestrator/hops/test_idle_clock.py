"""The silence of a peer is bounded, the slowness of a reader is not."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.hops.idle_clock import IdleClock


async def silence(own: float, seconds: float, pieces: int) -> None:
    """A peer that sends so many pieces and then nothing, under a timeout of ``own`` seconds."""
    async with asyncio.timeout(own) as timeout:
        with IdleClock(timeout, seconds) as idle:
            for _ in range(pieces):
                idle.pause()
                idle.run()
            await asyncio.Event().wait()


async def test_a_silent_peer_ends_the_timeout() -> None:
    with pytest.raises(TimeoutError):
        await silence(own=100, seconds=0.02, pieces=3)


async def test_a_peer_that_keeps_talking_does_not() -> None:
    async with asyncio.timeout(100) as timeout:
        with IdleClock(timeout, 0.5) as idle:
            for _ in range(20):
                idle.pause()
                idle.run()
                await asyncio.sleep(0.04)


async def test_a_slow_reader_does_not_either_and_the_peer_has_its_whole_time_after_it() -> None:
    async with asyncio.timeout(100) as timeout:
        with IdleClock(timeout, 0.3) as idle:
            idle.pause()
            await asyncio.sleep(0.7)
            idle.run()
            await asyncio.sleep(0.05)


async def test_until_the_first_piece_the_timeouts_own_time_counts() -> None:
    with pytest.raises(TimeoutError):
        await silence(own=0.02, seconds=100, pieces=0)


async def test_nothing_is_left_of_it_afterwards() -> None:
    async with asyncio.timeout(100) as timeout:
        with IdleClock(timeout, 0.02) as idle:
            idle.pause()
            idle.run()
        await asyncio.sleep(0.1)
