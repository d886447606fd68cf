"""The silence of a peer is bounded, the slowness of a reader is not."""

from __future__ import annotations

import asyncio

from orchestrator.hops.idle_clock import IdleClock


async def test_a_silent_peer_is_noticed_once() -> None:
    noticed: list[int] = []
    clock = IdleClock(100, 0.02, lambda: noticed.append(1))
    for _ in range(3):
        clock.heard()
    while not noticed:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert noticed == [1]
    clock.stop()


async def test_until_the_first_piece_another_bound_counts() -> None:
    noticed = asyncio.Event()
    clock = IdleClock(0.02, 100, noticed.set)
    await noticed.wait()
    clock.stop()


async def test_a_peer_that_keeps_talking_is_not_silent() -> None:
    noticed: list[int] = []
    clock = IdleClock(100, 0.5, lambda: noticed.append(1))
    for _ in range(20):
        clock.heard()
        await asyncio.sleep(0.04)
    assert not noticed
    clock.stop()


async def test_a_slow_reader_does_not_count_and_the_peer_has_its_whole_time_after_it() -> None:
    noticed: list[int] = []
    clock = IdleClock(100, 0.3, lambda: noticed.append(1))
    clock.heard()
    clock.pause()
    await asyncio.sleep(0.7)
    clock.run()
    await asyncio.sleep(0.05)
    assert not noticed
    while not noticed:
        await asyncio.sleep(0.005)
    clock.stop()


async def test_nothing_is_left_of_it_afterwards() -> None:
    noticed: list[int] = []
    clock = IdleClock(0.02, 0.02, lambda: noticed.append(1))
    clock.heard()
    clock.stop()
    await asyncio.sleep(0.1)
    assert not noticed
