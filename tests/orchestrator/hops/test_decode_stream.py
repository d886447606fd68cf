"""A decode stream that is paused: nothing is handed over, nothing is lost, and the end comes last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from orchestrator.hops.connections import Connections
from orchestrator.hops.decode import DecodeClient
from orchestrator.hops.errors import Garbled, HopError, TimedOut, Unreachable
from orchestrator.hops.messages import EngineAnswer


def event(token: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "token_ids": [token], "finish_reason": finish}
    return b"data: " + json.dumps({"request_id": "r", "choices": [choice]}).encode() + b"\n\n"


ALL = b"".join(event(n) for n in range(5)) + event(5, "length") + b"data: [DONE]\n\n"


@asynccontextmanager
async def decoding(pieces: list[bytes], *, ends: bool = True, idle: float = 30.0) -> AsyncIterator[Any]:
    """A client, the URL of an engine that sends ``pieces``, and an event that is set when it has."""
    sent, over = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        if ends:
            await response.write_eof()
        sent.set()
        if not ends:
            await over.wait()
        return response

    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    connections = Connections(connect_timeout=30, keepalive=5)
    client = DecodeClient(
        connections, first_timeout=30, idle_timeout=idle, max_event_bytes=10**6, max_error_bytes=10**4
    )
    try:
        yield client, f"http://127.0.0.1:{runner.addresses[0][1]}", sent
    finally:
        over.set()
        await connections.close()
        await runner.cleanup()


@pytest.mark.parametrize("pieces", [[ALL], [event(n) for n in range(5)] + [event(5, "length")]], ids=len)
@pytest.mark.parametrize("every", [1, 2, 6])
async def test_each_pause_holds_what_comes_and_resuming_hands_it_over_in_order(
    pieces: list[bytes], every: int
) -> None:
    async with decoding(pieces) as (client, url, sent):
        got: list[int] = []

        def take(answer: EngineAnswer) -> None:
            got.extend(answer.choices[0].token_ids or [])
            if len(got) % every == 0:
                stream.pause()

        stream = client.decode(url, {}, {}, take)
        run = asyncio.create_task(stream.run())
        await sent.wait()
        await asyncio.sleep(0.05)
        assert got == list(range(every))
        assert not run.done(), "the end comes after what is held"
        while not run.done():
            stream.resume()
            await asyncio.sleep(0.005)
        await run
        assert got == list(range(6))


async def test_a_paused_engine_is_not_silent() -> None:
    async with decoding([event(0)], ends=False, idle=0.1) as (client, url, _sent):
        paused = asyncio.Event()

        def take(_answer: EngineAnswer) -> None:
            stream.pause()
            paused.set()

        stream = client.decode(url, {}, {}, take)
        run = asyncio.create_task(stream.run())
        await paused.wait()
        await asyncio.sleep(0.4)
        assert not run.done()
        stream.resume()
        with pytest.raises(TimedOut):
            await run


@pytest.mark.parametrize(
    ("pieces", "kind", "taken"),
    [
        ([event(0) + event(1)], Unreachable, 2),
        ([event(0) + b"data: {\n\n" + event(1)], Garbled, 1),
        ([event(0) + b"data: [DONE]\n\n"], Unreachable, 1),
        ([event(0) + event(1, "abort")], HopError, 1),
    ],
    ids=["cut off", "damaged", "done too early", "given up"],
)
@pytest.mark.parametrize("pauses", [False, True])
async def test_what_came_before_a_failure_is_handed_over_first(
    pieces: list[bytes], kind: type[HopError], taken: int, pauses: bool
) -> None:
    async with decoding(pieces) as (client, url, sent):
        got: list[int] = []

        def take(answer: EngineAnswer) -> None:
            got.extend(answer.choices[0].token_ids or [])
            if pauses:
                stream.pause()

        stream = client.decode(url, {}, {}, take)
        run = asyncio.create_task(stream.run())
        await sent.wait()
        while not run.done():
            stream.resume()
            await asyncio.sleep(0.005)
        with pytest.raises(kind):
            await run
        assert len(got) == taken


async def test_what_the_taker_raises_ends_the_stream_and_comes_out_as_it_is() -> None:
    async with decoding([ALL]) as (client, url, _sent):
        calls: list[int] = []

        def take(_answer: EngineAnswer) -> None:
            calls.append(1)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await client.decode(url, {}, {}, take).run()
        assert calls == [1]


async def test_being_cancelled_closes_the_connection_and_hands_nothing_over_any_more() -> None:
    async with decoding([event(0)], ends=False) as (client, url, sent):
        counted: list[int] = []
        client.on_exchange = counted.append
        run = asyncio.create_task(client.decode(url, {}, {}, lambda _answer: None).run())
        await sent.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await asyncio.sleep(0)
        assert repr(client.connections) == "<Connections set()>"
        assert counted == [1, -1]
