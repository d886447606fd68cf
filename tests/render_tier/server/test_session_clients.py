"""Sessions and clients that lie, stall or vanish: each costs what it holds, for a bounded time, and no other
anything."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from render_tier.protocol.session import SESSION_PATH
from render_tier.server.service import Service
from tests.render_tier.server.test_sessions import chunk, opening
from tests.support.render_app import QWEN3, load_service, settings_for
from tests.support.session_client import Tier, served

Launch = Callable[..., AbstractAsyncContextManager[Tier]]
HANDSHAKE = (
    f"GET {SESSION_PATH} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()
TEXT, BINARY, CLOSE, PING = 0x81, 0x82, 0x88, 0x89
CONTINUED = 0x01


@pytest.fixture
def launch(qwen3_dir: Path, qwen3_service: Service) -> Launch:
    def make(**values: Any) -> AbstractAsyncContextManager[Tier]:
        settings = settings_for(qwen3_dir, **QWEN3, **values)
        return served(settings, load_service(settings, qwen3_service.assets))

    return make


def frame(payload: bytes, first: int = TEXT, *, masked: bool = True, length: int | None = None) -> bytes:
    """A WebSocket frame that says it is ``length`` long."""
    size = len(payload) if length is None else length
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes([first, bit | size])
    elif size < 1 << 16:
        head = bytes([first, bit | 126]) + struct.pack("!H", size)
    else:
        head = bytes([first, bit | 127]) + struct.pack("!Q", size)
    mask = os.urandom(4)
    body = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload)) if masked else payload
    return head + (mask if masked else b"") + body


class Raw:
    """A client that speaks in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def opened(self) -> None:
        self.writer.write(HANDSHAKE)
        assert b" 101 " in await self.reader.readuntil(b"\r\n\r\n")
        self.writer.write(frame(json.dumps([{"stream": 1, "open": opening(), "chunk": chunk([5])}]).encode()))
        head = await self.reader.readexactly(4)
        await self.reader.readexactly(int.from_bytes(head[2:], "big"))

    async def ended(self) -> int:
        """The code with which the server closes."""
        async with asyncio.timeout(30):
            while True:
                first, size = await self.reader.readexactly(2)
                if size == 126:
                    size = int.from_bytes(await self.reader.readexactly(2), "big")
                payload = await self.reader.readexactly(size)
                if first == CLOSE:
                    return int.from_bytes(payload[:2], "big")


@asynccontextmanager
async def raw(tier: Tier) -> AsyncIterator[Raw]:
    address = urlsplit(tier.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


async def left_empty(tier: Tier) -> None:
    async with asyncio.timeout(30):
        while len(tier.app.sessions) or tier.app.sessions.budget.streams:
            await asyncio.sleep(0.01)
    assert tier.app.sessions.budget.bytes == 0


async def test_half_closed_by_the_client(launch: Launch) -> None:
    async with launch() as tier, raw(tier) as client:
        await client.opened()
        client.writer.write_eof()
        await left_empty(tier)
        assert await asyncio.wait_for(client.reader.read(-1), 30) == b""


async def test_reset_by_the_client(launch: Launch) -> None:
    async with launch() as tier, raw(tier) as client:
        await client.opened()
        connection = client.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        await left_empty(tier)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        frame(b"", PING) * 3,
        frame(b"[", CONTINUED),
        frame(b"[{", TEXT, length=500_000),
        frame(b"[{", TEXT)[:3],
    ],
    ids=["nothing", "only pings", "half a message", "half a frame", "half a head"],
)
async def test_who_sends_no_whole_message_is_let_go_of(launch: Launch, sent: bytes) -> None:
    async with launch(session_idle_seconds=0.4) as tier, raw(tier) as client:
        await client.opened()
        client.writer.write(sent)
        assert await client.ended() == 1001
        await left_empty(tier)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"[]", TEXT, masked=False), 1002),
        (frame(b"", 0x83), 1002),
        (frame(b"", 0xF1), 1002),
        (frame(b"x" * 126, PING), 1002),
        (frame(b"[]", 0x80), 1002),
        (frame(b"\xff\xfe", TEXT), 1007),
        (frame(b"[\xff]", BINARY), 1007),
        (frame(b"", TEXT, length=1 << 40), 1009),
        (frame(b"[", CONTINUED) + frame(b" " * 70_000, 0x00) * 2, 1009),
    ],
    ids=[
        "not masked",
        "unknown opcode",
        "reserved bits",
        "long ping",
        "continuation of nothing",
        "text that is none",
        "bytes that are no JSON",
        "a terabyte",
        "many fragments",
    ],
)
async def test_frames_that_are_wrong_end_the_session_alone(launch: Launch, sent: bytes, code: int) -> None:
    async with launch(max_body_bytes=100_000) as tier, raw(tier) as client, tier.connect() as other:
        await client.opened()
        await other.ask({"stream": 1, "open": opening()})
        client.writer.write(sent)
        assert await client.ended() == code
        [answer] = await other.ask({"stream": 1, "chunk": chunk([5])})
        assert "chunk" in answer
        assert len(tier.app.sessions) == 1


async def test_thousands_of_frames_in_one_message_leave_others_their_turn(launch: Launch) -> None:
    async with launch(max_session_streams=100) as tier, tier.connect() as greedy, tier.connect() as other:
        await other.ask({"stream": 1, "open": opening()})
        first = {"endpoint": "chat", "request_id": "r", "request": {"messages": []}}
        greedy_frames: list[Any] = [{"stream": n, "open": first} for n in range(2000)]
        await greedy.say(*greedy_frames)
        hearing = asyncio.create_task(greedy.hear())
        turns = 0
        while not hearing.done():
            [answer] = await other.ask({"stream": 1, "chunk": chunk([5])})
            assert "chunk" in answer
            turns += 1
        answers = hearing.result()
        assert len(answers) == 2000
        assert {answer["error"]["code"] for answer in answers if "error" in answer} <= {400, 503}
        assert turns > 3


async def test_thousands_of_streams_in_one_session_are_bounded(launch: Launch) -> None:
    async with launch(max_session_streams=100) as tier, tier.connect() as session:
        answers = await session.ask(*({"stream": n, "open": opening(f"r{n}")} for n in range(3000)))
        refused = [answer["error"]["code"] for answer in answers if "error" in answer]
        assert refused == [503] * 2900
        assert tier.app.sessions.budget.streams == 100


async def test_ten_thousand_abandoned_sessions_leave_nothing(launch: Launch) -> None:
    """Each opens a stream and vanishes without a word, some while they are answered."""
    async with launch(max_sessions=64, context_cache_entries=50) as tier:
        message = json.dumps([{"stream": 1, "open": opening(), "chunk": chunk([5])}])
        scope = {"type": "websocket", "path": SESSION_PATH, "headers": []}
        answers = 0

        async def abandoned(number: int) -> None:
            nonlocal answers
            incoming = iter(
                [
                    {"type": "websocket.connect"},
                    {"type": "websocket.receive", "text": message},
                    {"type": "websocket.disconnect", "code": 1006},
                ]
            )

            async def receive() -> Any:
                return next(incoming)

            async def send(sent: Any) -> None:
                nonlocal answers
                if sent["type"] == "websocket.send":
                    answers += 1
                    if number % 3 == 0:
                        raise ConnectionResetError

            await tier.app(scope, receive, send)

        async def round_of(count: int, start: int) -> None:
            for number in range(start, start + count, 50):
                await asyncio.gather(*(abandoned(number + more) for more in range(50)))

        await round_of(1000, 0)
        gc.collect()
        objects = len(gc.get_objects())
        await round_of(9000, 1000)
        gc.collect()
        assert answers == 10_000
        assert (
            len(tier.app.sessions) == tier.app.sessions.budget.streams == tier.app.sessions.budget.bytes == 0
        )
        assert len(gc.get_objects()) - objects < 1000
