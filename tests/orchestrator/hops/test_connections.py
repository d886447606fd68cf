"""Connections are kept, shared in turn, and never touched by a handler whose exchange is over."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import uvloop

from orchestrator.hops.connections import Connection, Connections
from orchestrator.hops.errors import Absent, Garbled, HopError, Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Collected:
    """A handler that keeps what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.text = b""
        self.error: HopError | None = None
        self.ended = asyncio.Event()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def body(self, piece: bytes) -> None:
        assert not self.ended.is_set()
        self.text += piece

    def complete(self) -> None:
        assert not self.ended.is_set()
        self.ended.set()

    def failed(self, error: HopError) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()


class Server:
    """Reads a request, waits for ``go``, writes ``answer`` in pieces of ``cut`` bytes, maybe closes."""

    def __init__(self, answer: bytes, *, cut: int = 10**9, closes: bool = False) -> None:
        self.answer, self.cut, self.closes = answer, cut, closes
        self.go = asyncio.Event()
        self.go.set()
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                await self.go.wait()
                for start in range(0, len(self.answer), self.cut):
                    writer.write(self.answer[start : start + self.cut])
                    await asyncio.sleep(0)
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.open -= 1


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Connections]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/x"
    connections = Connections(connect_timeout=30, keepalive=5)
    try:
        yield connections
    finally:
        await connections.close()
        server.go.set()
        while server.open:
            await asyncio.sleep(0.005)
        listening.close()
        await listening.wait_closed()


async def asked(connections: Connections, server: Server) -> tuple[Connection, Collected]:
    handler = Collected()
    return await connections.send("decode", "POST", server.url, b"{}", {"X-A": "b"}, handler), handler


async def test_a_connection_is_used_again() -> None:
    server = Server(OK, cut=1)
    async with serving(server) as connections:
        for _ in range(3):
            _connection, handler = await asked(connections, server)
            await handler.ended.wait()
            assert (handler.status, handler.text, handler.error) == (200, b"ok", None)
        assert server.connections == 1
        assert b"X-A: b\r\n" in server.requests[0]
        assert server.requests[0].startswith(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_the_pieces_of_a_body_are_sent_in_their_order() -> None:
    server = Server(OK)
    async with serving(server) as connections:
        large = b"0123456789" * 300_000
        pieces = [b"[", memoryview(large)[7:], b"]"]
        handler = Collected()
        await connections.send("decode", "POST", server.url, pieces, {}, handler)
        await handler.ended.wait()
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert body == b"[" + large[7:] + b"]"
        assert f"Content-Length: {len(body)}".encode() in head


async def test_a_handler_that_is_done_cannot_disturb_the_next() -> None:
    server = Server(OK)
    async with serving(server) as connections:
        connection, first = await asked(connections, server)
        await first.ended.wait()
        server.go.clear()
        again, second = await asked(connections, server)
        assert again is connection
        connection.pause(first)
        connection.let_go(first)
        connection.abort(first)
        server.go.set()
        await second.ended.wait()
        assert (second.text, second.error) == (b"ok", None)


async def test_a_connection_that_was_paused_when_its_answer_ended_is_read_again() -> None:
    class Pausing(Collected):
        def body(self, piece: bytes) -> None:
            super().body(piece)
            connection.pause(self)

    server = Server(OK)
    async with serving(server) as connections:
        server.go.clear()
        first = Pausing()
        connection = await connections.send("decode", "POST", server.url, b"{}", {}, first)
        server.go.set()
        await first.ended.wait()
        again, second = await asked(connections, server)
        assert again is connection
        await second.ended.wait()
        assert second.text == b"ok"


async def test_what_is_let_go_is_read_to_its_end_and_the_connection_kept() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", cut=40)
    async with serving(server) as connections:
        server.go.clear()
        connection, handler = await asked(connections, server)
        connection.let_go(handler)
        server.go.set()
        while "busy=True" in repr(connections):
            await asyncio.sleep(0.005)
        assert not handler.status
        again, second = await asked(connections, server)
        assert again is connection
        await second.ended.wait()
        assert second.text == b"ok"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 40_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 1_000_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" * 40_000,
    ],
    ids=["lines", "one line", "interim", "interim with headers"],
)
async def test_a_head_without_end_is_broken_off(answer: bytes) -> None:
    server = Server(answer)
    async with serving(server) as connections:
        connection, handler = await asked(connections, server)
        async with asyncio.timeout(20):
            await handler.ended.wait()
        assert type(handler.error) is Garbled
        assert connection.closed


STALE = OK.replace(b"ok", b"no")


@pytest.mark.parametrize("surplus", [STALE, STALE * 2, b"H", b"HTTP/1.1 100 Continue\r\n\r\n" + STALE])
async def test_a_connection_with_more_than_the_answer_is_never_used_again(surplus: bytes) -> None:
    server = Server(OK + surplus)
    async with serving(server) as connections:
        spoilt, first = await asked(connections, server)
        await first.ended.wait()
        assert (first.text, first.error) == (b"ok", None)
        server.answer = OK
        exchanges = [await asked(connections, server) for _ in range(2)]
        for connection, handler in exchanges:
            await handler.ended.wait()
            assert connection is not spoilt
            assert (handler.text, handler.error) == (b"ok", None)
        assert spoilt.closed
        assert exchanges[0][0] is not exchanges[1][0]
        assert server.connections == 3


async def test_an_aborted_exchange_closes_the_connection() -> None:
    server = Server(OK)
    async with serving(server) as connections:
        server.go.clear()
        connection, handler = await asked(connections, server)
        connection.abort(handler)
        await asyncio.sleep(0)
        assert connection.closed
        _connection, second = await asked(connections, server)
        server.go.set()
        await second.ended.wait()
        assert server.connections == 2
        assert not handler.ended.is_set()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", Unreachable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", Unreachable),
        (b"", Unreachable),
        (b"not HTTP at all\r\n\r\n", Garbled),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n", Garbled),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Garbled),
    ],
)
async def test_damaged_answers(answer: bytes, kind: type[HopError]) -> None:
    server = Server(answer, closes=True)
    async with serving(server) as connections:
        connection, handler = await asked(connections, server)
        await handler.ended.wait()
        assert type(handler.error) is kind
        await asyncio.sleep(0)
        assert connection.closed


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
    ids=["until closed", "1.0", "close", "interim"],
)
@pytest.mark.parametrize("cut", [1, 10**9])
async def test_ways_of_ending_an_answer(answer: bytes, cut: int) -> None:
    server = Server(answer, closes=b"100 Continue" not in answer, cut=cut)
    async with serving(server) as connections:
        _connection, handler = await asked(connections, server)
        await handler.ended.wait()
        assert (handler.status, handler.text, handler.error) == (200, b"ok", None)


async def test_nobody_there() -> None:
    connections = Connections(connect_timeout=30, keepalive=5)
    for url in ("http://127.0.0.1:9/", "http://[::1]:9/", "https://127.0.0.1:9/"):
        with pytest.raises(Absent):
            await connections.send("decode", "GET", url, None, {}, Collected())
    await connections.close()


def test_a_name_that_is_looked_up_for_too_long_leaves_nothing_behind() -> None:
    complaints = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        connections = Connections(connect_timeout=1e-6, keepalive=5)
        with pytest.raises(Absent):
            await connections.send("decode", "GET", "http://no-such-member.invalid", None, {}, Collected())
        # The next lookup of the name ends after the one that was given up.
        with pytest.raises(socket.gaierror):
            await asyncio.get_running_loop().getaddrinfo("no-such-member.invalid", 80)
        await connections.close()
        gc.collect()

    uvloop.run(ask())
    assert complaints == []


async def test_no_header_can_hold_another() -> None:
    server = Server(OK)
    async with serving(server) as connections:
        with pytest.raises(ValueError, match="line break"):
            await connections.send("decode", "GET", server.url, None, {"A": "b\r\nC: d"}, Collected())
        assert server.connections == 0


async def test_credentials_of_the_url_are_sent() -> None:
    server = Server(OK)
    async with serving(server) as connections:
        url = server.url.replace("http://", "http://me:secret@")
        handler = Collected()
        await connections.send("decode", "GET", url, None, {}, handler)
        await handler.ended.wait()
        assert b"Authorization: Basic bWU6c2VjcmV0\r\n" in server.requests[0]
        assert b"Host: 127.0.0.1" in server.requests[0]


def test_under_the_event_loop_of_the_server() -> None:
    uvloop.run(test_a_handler_that_is_done_cannot_disturb_the_next())
    uvloop.run(test_an_aborted_exchange_closes_the_connection())
    uvloop.run(test_a_connection_with_more_than_the_answer_is_never_used_again(STALE))
    uvloop.run(test_a_connection_that_was_paused_when_its_answer_ended_is_read_again())
