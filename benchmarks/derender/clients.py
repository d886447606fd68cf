"""Clients that cost little themselves: raw HTTP, and the orchestrator's session link."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from benchmarks.derender.workload import PATH, Workload
from orchestrator.hops import websocket
from orchestrator.hops.sessions import Link
from render_tier.protocol.session import SESSION_PATH, Answer


class _Notes(msgspec.Struct):
    context: str


class _Reply(msgspec.Struct):
    stream_state: msgspec.Raw
    derender: _Notes | None = None


_reply = msgspec.json.Decoder(_Reply)


class Http(asyncio.Protocol):
    """One kept-alive connection, one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._transport: asyncio.Transport
        self._reply: asyncio.Future[bytes] | None = None
        self._data = bytearray()
        self._body = -1  # where it begins, once its head has arrived
        self._end = 0
        self.sent = self.received = 0
        """Bytes of bodies."""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, self._host, self._port)

    async def post(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + body)
        content = await self._reply
        self.sent += len(body)
        self.received += len(content)
        return content

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._body < 0:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._data[:end]).lower()
            self._body = end + 4
            self._end = self._body + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            self._good = head.startswith(b"http/1.1 200")
        if len(self._data) < self._end or self._reply is None:
            return
        content = bytes(self._data[self._body : self._end])
        self._data.clear()
        self._body = -1
        reply, self._reply = self._reply, None
        if self._good:
            reply.set_result(content)
        else:
            reply.set_exception(RuntimeError(content.decode(errors="replace")[:500]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        self._transport.close()


class CallStream:
    """A stream by single calls; ``full`` sends the whole context each time, as vLLM's clients must."""

    def __init__(self, http: Http, work: Workload, number: int, *, full: bool) -> None:
        self._http, self._work, self._number, self._full = http, work, number, full
        self._state = b"null"
        self._context: str | None = None

    async def read(self, position: int) -> None:
        if self._full or self._context is None:
            body = self._work.full_call(self._number, position, self._state)
        else:
            body = self._work.named_call(self._number, position, self._state, self._context)
        reply = _reply.decode(await self._http.post(PATH, body))
        self._state = bytes(reply.stream_state)
        self._context = reply.derender.context if reply.derender else None


class SessionStream:
    """A stream on a shared link."""

    def __init__(self, link: CountingLink, work: Workload, number: int) -> None:
        self._link, self._work, self._name = link, work, number
        self._number = link.number()
        self._opened = False

    async def read(self, position: int) -> None:
        token = self._work.output[position % len(self._work.output)]
        frame: dict[str, Any] = {
            "stream": self._number,
            "chunk": {"choices": [{"index": 0, "token_ids": [token], "finish_reason": None}]},
        }
        if not self._opened:
            self._opened = True
            frame["open"] = self._work.opening(self._name)
        answer: Answer = await self._link.call(frame)
        self._link.received += len(answer.chunk) + len(answer.stream_state) + 120

    def close(self) -> None:
        self._link.end(self._number)


class CountingLink(Link):
    """Counts bytes of bodies: sent exactly, received about (the parts of an answer that vary, and its
    keys)."""

    sent = 0
    received = 0

    def _send(self, frame: bytes) -> None:
        super()._send(frame)
        self.sent += len(frame) + 1


async def connect(url: str) -> CountingLink:
    link = CountingLink(url)
    link.through(
        await websocket.connect(
            "derender", URL(url + SESSION_PATH), link,
            headers={}, heartbeat=10.0, max_message_bytes=1 << 28, tls=None,
        )
    )  # fmt: skip
    return link
