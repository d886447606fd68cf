"""Links to derender sessions: order, batching, and every way in which the other side may fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from orchestrator.hops.errors import HopError, Overloaded, Refused, TimedOut, Unreachable
from orchestrator.hops.sessions import MOST_FRAMES, Link, SessionPool
from orchestrator.hops.transport import Transport
from render_tier.protocol.session import SESSION_PATH

Serve = Callable[[web.WebSocketResponse], Awaitable[None]]


class Server:
    """Plays a render tier's session endpoint: ``serve`` is given each connection."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.handshakes = 0
        self.refuse: int | None = None
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.handshakes += 1
        if self.refuse is not None:
            return web.Response(status=self.refuse)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await self.serve(socket)
        return socket


@asynccontextmanager
async def pool_of(serve: Serve, **options: Any) -> AsyncIterator[tuple[SessionPool, Server]]:
    server = Server(serve)
    app = web.Application()
    app.router.add_get(SESSION_PATH, server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    transport = Transport(
        connect_timeout=1.0,
        keepalive=4.0,
        max_reply_bytes=1 << 20,
        max_error_bytes=1024,
    )
    settings = {
        "streams_per_connection": 64,
        "connect_timeout": 20.0,
        "answer_within": 30.0,
        "heartbeat": 5.0,
        "recheck": 60.0,
        **options,
    }
    pool = SessionPool(transport, clock=asyncio.get_running_loop().time, **settings)
    try:
        yield pool, server
    finally:
        await pool.close()
        await transport.close()
        await runner.cleanup()


async def linked(pool: SessionPool, server: Server) -> Link:
    link = await pool.link(server.url)
    assert link is not None
    return link


def frame(number: int) -> dict[str, Any]:
    return {"stream": number, "chunk": {"choices": []}}


def answers(frames: list[Any]) -> str:
    return json.dumps([{"stream": f["stream"], "chunk": {"n": f["stream"]}} for f in frames if "chunk" in f])


async def echo(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        await socket.send_str(answers(json.loads(message.data)))


async def test_calls_of_one_moment_share_a_message() -> None:
    messages: list[int] = []

    async def serve(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            frames = json.loads(message.data)
            messages.append(len(frames))
            await socket.send_str(answers(frames))

    async with pool_of(serve) as (pool, server):
        link = await linked(pool, server)
        numbers = [link.number() for _ in range(20)]
        got = await asyncio.gather(*(link.call(frame(number)) for number in numbers))
        assert [json.loads(bytes(answer.chunk))["n"] for answer in got] == numbers
        assert messages == [20]
        for number in numbers:
            link.end(number)
        assert link.streams == 0


async def test_while_an_answer_is_awaited_frames_wait_for_others() -> None:
    messages: list[list[int]] = []
    release = asyncio.Event()

    async def serve(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            frames = json.loads(message.data)
            messages.append([each["stream"] for each in frames])
            await release.wait()
            await socket.send_str(answers(frames))

    async with pool_of(serve) as (pool, server):
        link = await linked(pool, server)
        first, second, third = (link.number() for _ in range(3))
        calls = [link.call(frame(first))]
        while not messages:
            await asyncio.sleep(0)
        calls.append(link.call(frame(second)))
        await asyncio.sleep(0)
        calls.append(link.call(frame(third)))
        release.set()
        await asyncio.gather(*calls)
        assert messages == [[first], [second, third]]


async def test_frames_do_not_wait_long_for_an_answer() -> None:
    arrived: asyncio.Queue[list[int]] = asyncio.Queue()
    over = asyncio.Event()

    async def serve(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            arrived.put_nowait([each["stream"] for each in json.loads(message.data)])
        over.set()

    async with pool_of(serve) as (pool, server):
        link = await linked(pool, server)
        calls = [link.call(frame(link.number()))]
        assert await arrived.get() == [1]
        calls.append(link.call(frame(link.number())))
        assert await arrived.get() == [2], "although the first has no answer"
        for call in calls:
            call.cancel()
    await over.wait()


async def test_a_message_is_never_longer_than_a_server_takes() -> None:
    messages: list[int] = []

    async def serve(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            frames = json.loads(message.data)
            messages.append(len(frames))
            await socket.send_str(answers(frames))

    async with pool_of(serve, streams_per_connection=3 * MOST_FRAMES) as (pool, server):
        link = await linked(pool, server)
        numbers = [link.number() for _ in range(2 * MOST_FRAMES + 5)]
        got = await asyncio.gather(*(link.call(frame(number)) for number in numbers))
        assert [json.loads(bytes(answer.chunk))["n"] for answer in got] == numbers
        assert messages == [MOST_FRAMES, MOST_FRAMES, 5]
        for number in numbers:
            link.end(number)


async def test_a_connection_is_shared_up_to_its_streams() -> None:
    async with pool_of(echo, streams_per_connection=2) as (pool, server):
        links = []
        for _ in range(5):
            link = await linked(pool, server)
            link.number()
            links.append(link)
        assert server.handshakes == 3
        links[0].streams = 0
        assert await pool.link(server.url) is links[0]


async def test_many_that_begin_at_once_make_one_connection() -> None:
    async with pool_of(echo) as (pool, server):
        found = await asyncio.gather(*(pool.link(server.url) for _ in range(20)))
        assert len(set(map(id, found))) == server.handshakes == 1


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
async def test_a_refused_handshake_is_remembered(status: int) -> None:
    async with pool_of(echo) as (pool, server):
        server.refuse = status
        assert await pool.link(server.url) is None
        assert await pool.link(server.url) is None
        assert server.handshakes == 1
    async with pool_of(echo, recheck=0.0) as (pool, server):
        server.refuse = status
        assert await pool.link(server.url) is None
        server.refuse = None
        assert await pool.link(server.url) is not None


async def test_nobody_there() -> None:
    async with pool_of(echo) as (pool, _server):
        with pytest.raises(Unreachable):
            await pool.link("http://127.0.0.1:9")


async def test_a_handshake_that_hangs() -> None:
    over = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # to the end, which is the client's giving up
        writer.close()
        await writer.wait_closed()
        over.set()

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with pool_of(echo, connect_timeout=0.1) as (pool, _server):
        with pytest.raises(TimedOut):
            await pool.link(f"http://127.0.0.1:{port}")
    await over.wait()
    silent.close()
    await silent.wait_closed()


async def test_openings_on_a_member_that_is_silent_fail_together() -> None:
    """Not one after the other, each with a time-out of its own."""
    attempts = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await reader.read()
        writer.close()
        await writer.wait_closed()

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with pool_of(echo, connect_timeout=0.1) as (pool, _server):
        results = await asyncio.gather(*(pool.link(url) for _ in range(20)), return_exceptions=True)
        assert [type(result) for result in results] == [TimedOut] * 20
        assert attempts == 1
        with pytest.raises(TimedOut):
            await pool.link(url)
        assert attempts == 2, "who asks later tries again"
    silent.close()
    await silent.wait_closed()


@pytest.mark.parametrize(
    "reply",
    [
        "{",
        "{}",
        "[1]",
        "[]]",
        '[{"stream":99,"chunk":{}}]',
        '[{"stream":1,"chunk":{}},{"stream":1,"chunk":{}},{"stream":1,"chunk":{}}]',
        '[{"stream":"x"}]',
        "\x00",
        pytest.param('[{"stream":1,"chunk":' + "[" * 2000 + "]" * 2000 + "}]", id="deep"),
        None,
    ],
    ids=str,
)
async def test_what_is_not_the_protocol_or_a_closed_connection_fails_every_call(reply: str | None) -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        message = await socket.receive()
        if message.type is WSMsgType.BINARY and reply is not None:
            await socket.send_str(reply)
            await socket.receive()

    async with pool_of(serve) as (pool, server):
        link = await linked(pool, server)
        calls = [link.call(frame(link.number())), link.call(frame(link.number()))]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[-1], Unreachable)
        assert results[-1].retry_safe
        while not link.closed:
            await asyncio.sleep(0.005)
        with pytest.raises(Unreachable):
            await link.call(frame(1))
        link.end(1)
        assert await pool.link(server.url) is not link


@pytest.mark.parametrize(
    ("code", "kind"), [(400, Refused), (404, Refused), (409, Refused), (503, Overloaded)]
)
async def test_an_error_is_of_its_stream_alone(code: int, kind: type[HopError]) -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        error = {"message": "no", "type": "BadRequestError", "param": None, "code": code}
        async for _message in socket:
            await socket.send_str(json.dumps([{"stream": 1, "error": error}, {"stream": 2, "chunk": {}}]))

    async with pool_of(serve) as (pool, server):
        link = await linked(pool, server)
        bad, good = link.call(frame(link.number())), link.call(frame(link.number()))
        with pytest.raises(kind) as error:
            await bad
        assert error.value.status == code
        assert (await good).stream == 2
        assert not link.closed


async def test_a_call_that_is_given_up_does_not_shift_the_others() -> None:
    release = asyncio.Event()

    async def serve(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            await release.wait()
            await socket.send_str(answers(json.loads(message.data)))

    async with pool_of(serve) as (pool, server):
        link = await linked(pool, server)
        first, second = link.call(frame(link.number())), link.call(frame(link.number()))
        first.cancel()
        release.set()
        assert (await second).stream == 2


async def test_a_server_that_moves_away_gets_no_new_streams() -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        await socket.send_str('[{"moving":true}]')
        await echo(socket)

    async with pool_of(serve) as (pool, server):
        link = await linked(pool, server)
        number = link.number()
        while not link.moving:
            await asyncio.sleep(0.005)
        assert await pool.link(server.url) is not link
        assert (await link.call(frame(number))).stream == number


async def test_an_answer_that_does_not_come_in_time_ends_the_connection_for_all_that_wait() -> None:
    async def serve(socket: web.WebSocketResponse) -> None:
        first = json.loads((await socket.receive()).data)
        await socket.send_str(answers(first[:1]))
        async for _message in socket:
            pass  # and never again

    async with pool_of(serve, answer_within=0.1) as (pool, server):
        link = await linked(pool, server)
        first = link.call(frame(link.number()))
        assert (await first).stream == 1
        calls = [link.call(frame(link.number())), link.call(frame(link.number()))]
        for call in calls:
            with pytest.raises(TimedOut):
                await call
        assert link.closed
        assert await pool.link(server.url) is not link


async def test_a_connection_without_calls_has_no_time_limit() -> None:
    async with pool_of(echo, answer_within=0.05) as (pool, server):
        link = await linked(pool, server)
        number = link.number()
        await link.call(frame(number))
        await asyncio.sleep(0.2)
        assert (await link.call(frame(number))).stream == number
