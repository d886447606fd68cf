"""The real server at the level of bytes: framing that could smuggle a request, heads and bodies that are too
large or too slow."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT
from tests.support.raw_http import REFUSED, SMUGGLED, answers, exchange

BOUNDS: dict[str, Any] = {
    "server": {"header_bytes": 4096, "header_timeout": 0.3, "keepalive": 1.0},
    "timeouts": {"body": 0.3},
}
PATIENT: dict[str, Any] = {"server": {"keepalive": 1.0}}
HEAD = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
GOOD = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}'


def port_of(stack: Stack) -> int:
    port = urlsplit(stack.url).port
    assert port is not None
    return port


async def test_framing_that_could_be_read_in_two_ways_is_refused_and_the_connection_closed(
    launch: Launch,
) -> None:
    async with launch(settings=BOUNDS) as stack:
        for name, request in REFUSED.items():
            received = await exchange(port_of(stack), request.replace(b"PATH", CHAT.encode()))
            assert len(answers(received)) <= 1, (name, received)
            assert all(400 <= status < 500 for status in answers(received)), (name, received)
            assert b"/smuggled" not in received, name
        assert not stack.render.requests
        await stack.settled()


async def test_a_good_request_of_bytes_is_answered_and_the_next_one_too(launch: Launch) -> None:
    """The cases above fail for their framing and for nothing else."""
    async with launch(settings=PATIENT) as stack:
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
        chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(GOOD) + GOOD + b"\r\n0\r\n\r\n"
        received = await exchange(port_of(stack), request + chunked + SMUGGLED)
        assert answers(received) == [200, 200, 404]
        await stack.settled()


async def test_what_follows_a_request_that_closes_the_connection_is_not_done(launch: Launch) -> None:
    async with launch(settings=PATIENT) as stack:
        first = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD
        received = await exchange(
            port_of(stack), first + HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD
        )
        assert answers(received) == [200]
        assert sum(map(len, stack.render.requests.values())) == 2  # render and derender of one request
        await stack.settled()


@pytest.mark.parametrize(
    "behind",
    [
        b"garbage\r\n\r\n",
        HEAD + b"Host: again\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n",
        HEAD + b"X: " + b"x" * 5000,
        HEAD,
    ],
    ids=["garbage", "two hosts", "broken chunks", "a head that is too large", "half a head"],
)
@pytest.mark.parametrize(("count", "stream"), [(1, b"true"), (2, b"false")])
async def test_what_is_whole_is_answered_also_when_what_follows_it_is_refused(
    launch: Launch, behind: bytes, count: int, stream: bytes
) -> None:
    async with launch(settings={"server": BOUNDS["server"]}, pace=0.2) as stack:
        body = GOOD[:-1] + b', "stream": %b}' % stream
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        received = await exchange(port_of(stack), request * count + behind)
        assert answers(received) == [200] * count
        ends = [b"[DONE]", b"0\r\n\r\n"] if stream == b"true" else [b'"usage"', b"}"]
        assert received.count(ends[0]) == count
        assert received.endswith(ends[1])
        await stack.settled()


@pytest.mark.parametrize("length", [b"", b"Content-Length: 9\r\n"], ids=["no length", "too short"])
async def test_a_body_beyond_its_length_is_told_of_what_is_within(launch: Launch, length: bytes) -> None:
    async with launch(settings=PATIENT) as stack:
        received = await exchange(port_of(stack), HEAD + length + b"\r\n" + GOOD)
        assert answers(received) == [400]
        assert b"The body is not a JSON object" in received
        assert b"connection: close" in received.lower()
        await stack.settled()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 5000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 3_000_000,
        b"GET /" + b"x" * 3_000_000,
        b"x" * 3_000_000,
    ],
    ids=["line", "value", "number", "endless value", "endless line", "endless method"],
)
async def test_a_head_that_is_too_large_is_refused_before_it_is_all_there(
    launch: Launch, head: bytes
) -> None:
    async with launch(settings=BOUNDS) as stack:
        for request in (head, b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n" + head):
            statuses = answers(await exchange(port_of(stack), request))
            assert set(statuses) <= {200, 400, 431}
            assert statuses.count(200) == (request is not head and bool(statuses))
        assert (await stack.http.get("/health")).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: h\r\n", b"\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(launch: Launch, sent: bytes) -> None:
    async with launch(settings=BOUNDS) as stack:
        assert answers(await exchange(port_of(stack), sent)) == ([408] if sent else [])
        after_another = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n" + sent
        assert answers(await exchange(port_of(stack), after_another))[0] == 200


async def test_a_head_that_comes_byte_by_byte_has_no_more_time_than_a_whole_one(launch: Launch) -> None:
    async with launch(settings=BOUNDS) as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(stack))
        writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n")
        while not reader.at_eof() and not writer.is_closing():
            writer.write(b"X")
            try:
                received = await asyncio.wait_for(reader.read(-1), 0.05)
                break
            except TimeoutError:
                continue
        assert answers(received) in ([408], [])
        writer.close()


async def test_a_body_that_does_not_come_is_408_also_byte_by_byte(launch: Launch) -> None:
    async with launch(settings=BOUNDS) as stack:
        for framing in (b"Content-Length: 1000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
            assert answers(await exchange(port_of(stack), HEAD + framing)) == [408]
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(stack))
        writer.write(HEAD + b"Content-Length: 100000\r\n\r\n")
        received = b""
        while not received:
            writer.write(b" ")
            try:
                received = await asyncio.wait_for(reader.readline(), 0.02)
            except TimeoutError:
                continue
        assert answers(received) == [408]
        writer.close()
        await stack.settled()


async def test_a_body_that_goes_on_after_its_answer_is_not_read_for_ever(launch: Launch) -> None:
    async with launch(settings=BOUNDS | {"limits": {"body_bytes": 100}}) as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(stack))
        writer.write(HEAD + b"Content-Length: 100000000\r\n\r\n")
        closed = asyncio.create_task(reader.read(-1))
        while not closed.done():
            writer.write(b" " * 100)
            await asyncio.sleep(0.01)
        with contextlib.suppress(ConnectionError):  # closed under what we had still sent
            assert answers(await closed) == [413]
        writer.close()
        await stack.settled()


async def test_an_upgrade_is_not_followed(launch: Launch) -> None:
    async with launch(settings=BOUNDS) as stack:
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        for head in (upgrade, b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"):
            received = await exchange(
                port_of(stack), b"GET /health HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n" + SMUGGLED
            )
            assert 101 not in answers(received)
            assert b"smuggled" not in received
        received = await exchange(port_of(stack), HEAD + upgrade + b"Content-Length: 2\r\n\r\n{}")
        assert all(status >= 400 for status in answers(received))
        assert answers(await exchange(port_of(stack), b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n")) in (
            [400],
            [404],
        )
        await stack.settled()
