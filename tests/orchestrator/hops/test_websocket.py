"""WebSockets to members: what comes in pieces, what is too long, who we say we are, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve
from yarl import URL

from orchestrator.hops import websocket
from orchestrator.hops.errors import Garbled, HopError, Unreachable

LONGEST = 1000


class Owner:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = asyncio.Event()

    def message(self, data: bytes) -> None:
        self.messages.put_nowait(data)

    def writable(self) -> None:
        pass

    def lost(self) -> None:
        assert not self.ended.is_set()
        self.ended.set()


async def connected(url: str, owner: Owner) -> websocket.WebSocket:
    return await websocket.connect(
        "derender",
        URL(url),
        owner,
        headers={"X-Ours": "1"},
        heartbeat=5.0,
        max_message_bytes=LONGEST,
        tls=None,
    )


@asynccontextmanager
async def server_of(talk: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    async with serve(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_a_message_in_several_frames_is_one() -> None:
    async def talk(connection: ServerConnection) -> None:
        await connection.send([b"one ", b"two ", b"three"])
        await connection.send("four")
        await connection.wait_closed()

    owner = Owner()
    async with server_of(talk) as url:
        socket = await connected(url, owner)
        assert await owner.messages.get() == b"one two three"
        assert await owner.messages.get() == b"four"
        await socket.close()
        assert not owner.ended.is_set(), "who closes knows it"


@pytest.mark.parametrize(
    "message", [b"x" * (LONGEST + 1), [b"x" * 600, b"x" * 600]], ids=["one frame", "two"]
)
async def test_a_message_that_is_too_long_ends_the_connection(message: bytes | list[bytes]) -> None:
    async def talk(connection: ServerConnection) -> None:
        await connection.send(message)
        await connection.wait_closed()

    owner = Owner()
    async with server_of(talk) as url:
        await connected(url, owner)
        await owner.ended.wait()
        assert owner.messages.empty()


async def test_an_end_by_the_other_side_is_told_once() -> None:
    async def talk(connection: ServerConnection) -> None:
        await connection.close()

    owner = Owner()
    async with server_of(talk) as url:
        socket = await connected(url, owner)
        await owner.ended.wait()
        await socket.close()


async def test_our_headers_go_with_the_handshake() -> None:
    async def talk(connection: ServerConnection) -> None:
        assert connection.request is not None
        await connection.send(connection.request.headers["X-Ours"])

    owner = Owner()
    async with server_of(talk) as url:
        await connected(url, owner)
        assert await owner.messages.get() == b"1"
        await owner.ended.wait()


@pytest.mark.parametrize(
    ("reply", "kind"), [(b"", Unreachable), (b"SSH-2.0-x\r\n\r\n", Garbled)], ids=["nothing", "not HTTP"]
)
async def test_what_does_not_speak_the_protocol(reply: bytes, kind: type[HopError]) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        with pytest.raises(kind):
            await connected(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", Owner())
