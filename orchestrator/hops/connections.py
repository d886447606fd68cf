"""Kept-alive HTTP/1.1 connections whose answers are handed over as they come, by callbacks.

Made for streams of many small pieces: a piece goes from the socket through the parser (httptools) to its
handler in one call, where a reader task would be woken for each. One exchange at a time on a connection. A
connection is kept when the answer was read to its end and both sides allow it, at most ``keepalive`` seconds.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Mapping
from typing import Final, Protocol, cast

import httptools
from yarl import URL

from orchestrator.core.long_strings import Pieces
from orchestrator.hops.errors import Absent, Garbled, HopError, HopName, Unreachable
from orchestrator.hops.tls import SYSTEM_TLS, Tls

Origin = tuple[str, str, int]
"""Scheme, host, port."""

MAX_HEAD_BYTES: Final = 64 * 1024
"""Names and values of an exchange's headers, with those of interim answers and trailers; also what may come
in a row without a header or a piece of the body."""


class Handler(Protocol):
    """What an exchange does with its answer. Nothing is called after ``complete`` or ``failed``."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """``headers`` has lower-case names."""

    def body(self, piece: bytes) -> None: ...

    def complete(self) -> None: ...

    def failed(self, error: HopError) -> None: ...


class Connection(asyncio.Protocol):
    """Made and kept by ``Connections``."""

    def __init__(self, owner: Connections, origin: Origin, hop: HopName) -> None:
        self.origin = origin
        self._owner = owner
        self._hop = hop
        self._url = ""
        self._handler: Handler | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        """Of the present exchange."""
        self._headers: dict[str, str] = {}
        self._status = 0
        self._head_bytes = 0
        self._unread_bytes = 0
        """Since the last header or piece of a body."""
        self._answering = False
        self._until_closed = False
        """The answer ends with the connection."""
        self._idle_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.origin} busy={self._answering} closed={self.closed}>"

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def begin(self, url: str, request: Pieces, handler: Handler) -> None:
        assert self._transport is not None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._url, self._handler = url, handler
        self._answering = True
        self._head_bytes = self._unread_bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport.writelines(request)

    # A handler whose exchange is over no longer has the connection: it may be another's by now.

    def pause(self, handler: Handler) -> None:
        if self._handler is handler and not self.closed:
            assert self._transport is not None
            self._transport.pause_reading()

    def resume(self, handler: Handler) -> None:
        if self._handler is handler and not self.closed:
            assert self._transport is not None
            self._transport.resume_reading()

    def let_go(self, handler: Handler) -> None:
        """``handler`` has all that it wants. What is still to come of the answer is read and dropped."""
        if self._handler is handler:
            self.resume(handler)
            self._handler = None
            self._idle_timer = asyncio.get_running_loop().call_later(self._owner.keepalive, self.close)

    def abort(self, handler: Handler) -> None:
        """Break the exchange off, which the other side sees as a disconnect."""
        if self._handler is handler:
            self.close()

    def close(self) -> None:
        self._handler = None
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods and not the class.
        self._transport = cast(asyncio.Transport, transport)
        self._owner.made(self)

    def data_received(self, data: bytes) -> None:
        if not self._answering:
            self.close()  # nothing was asked
            return
        self._unread_bytes += len(data)
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # Of several things that a damaged answer may be, nothing is worth telling apart.
            self._fail(
                Garbled(
                    self._hop,
                    f"the {self._hop} tier's answer is not HTTP",
                    detail=repr(error),
                    member=self._url,
                )
            )
            self.close()
        if self._unread_bytes > MAX_HEAD_BYTES:
            self._fail_of_size()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._parser = None
        self._stop_timer()
        self._owner.forget(self)
        if self._until_closed and error is None:
            self._complete()
            return
        detail = "closed by the other side" if error is None else repr(error)
        self._fail(
            Unreachable(
                self._hop, f"the connection to the {self._hop} tier was lost", detail=detail, member=self._url
            )
        )

    # ---- httptools -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}
        if not self._answering:
            self.close()  # more than the answer: the next exchange would take it for its own

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unread_bytes = 0
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail_of_size()
            return
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return  # an interim answer
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._until_closed = not framed and self._status not in (204, 304)
        if self._handler is not None:
            self._handler.head(self._status, self._headers)

    def on_body(self, piece: bytes) -> None:
        self._unread_bytes = 0
        if self._handler is not None:
            self._handler.body(piece)

    def on_message_complete(self) -> None:
        if self._status < 200 or not self._answering:
            return
        assert self._parser is not None
        reusable = self._parser.should_keep_alive() and not self._until_closed
        self._complete()
        if reusable and not self.closed:
            assert self._transport is not None
            # Its handler may have paused it, and cannot resume it any more.
            self._transport.resume_reading()
            self._stop_timer()
            self._idle_timer = asyncio.get_running_loop().call_later(self._owner.keepalive, self.close)
            self._owner.keep(self)
        else:
            self.close()

    # ---- small parts ---------------------------------------------------------------------------------------

    def _complete(self) -> None:
        self._answering = self._until_closed = False
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.complete()

    def _fail(self, error: HopError) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.failed(error)

    def _fail_of_size(self) -> None:
        detail = f"over {MAX_HEAD_BYTES} bytes"
        message = f"the head of the {self._hop} tier's answer is too large"
        self._fail(Garbled(self._hop, message, detail=detail, member=self._url))
        self.close()

    def _stop_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


class Connections:
    """``headers`` go with every request. Times are seconds."""

    def __init__(
        self,
        *,
        connect_timeout: float,
        keepalive: float,
        headers: Mapping[str, str] | None = None,
        tls: Tls = SYSTEM_TLS,
    ) -> None:
        self.keepalive = keepalive
        self._connect_timeout = connect_timeout
        self._headers = dict(headers or {})
        self._idle: dict[Origin, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._tls = tls

    def __repr__(self) -> str:
        return f"<Connections {self._all!r}>"

    async def send(
        self,
        hop: HopName,
        method: str,
        url: str,
        body: bytes | Pieces | None,
        headers: Mapping[str, str],
        handler: Handler,
    ) -> Connection:
        """Send a request, with a JSON ``body`` or none; the answer goes to ``handler``. Pieces are sent from
        where they are. Raises ``HopError`` when nobody is there."""
        target = URL(url)
        origin = (target.scheme, target.raw_host or "", target.port or 80)
        request = _request(method, target, body, {**self.headers_for(target), **headers})
        connection = self._kept(origin) or await self._connect(hop, url, origin)
        if connection.closed:
            raise Unreachable(hop, f"the connection to the {hop} tier was lost", member=url)
        connection.begin(url, request, handler)
        return connection

    def headers_for(self, target: URL) -> dict[str, str]:
        """What goes with every request there. Credentials of our own count before those in the URL."""
        if target.user is None or "Authorization" in self._headers:
            return self._headers
        secret = base64.b64encode(f"{target.user}:{target.password or ''}".encode()).decode()
        return {**self._headers, "Authorization": f"Basic {secret}"}

    def made(self, connection: Connection) -> None:
        self._all.add(connection)

    def keep(self, connection: Connection) -> None:
        self._idle.setdefault(connection.origin, []).append(connection)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(connection.origin, [])
        if connection in idle:
            idle.remove(connection)

    async def close(self) -> None:
        for connection in list(self._all):
            connection.close()
        # Connections that were broken off close in the loop's next turn.
        await asyncio.sleep(0)

    def _kept(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    async def _connect(self, hop: HopName, url: str, origin: Origin) -> Connection:
        scheme, host, port = origin
        try:
            async with asyncio.timeout(self._connect_timeout):
                tls = await self._tls.context() if scheme == "https" else None
                return await self._first_to_answer(hop, origin, host, port, tls)
        except (OSError, ValueError) as error:  # a time-out is an OSError; ValueError: no name that can be
            raise Absent(hop, f"the {hop} tier cannot be reached", detail=repr(error), member=url) from error

    async def _first_to_answer(
        self, hop: HopName, origin: Origin, host: str, port: int, tls: ssl.SSLContext | None
    ) -> Connection:
        """Raises the last address's ``OSError``. The name is looked up here: uvloop, told to connect to a
        name and given up meanwhile, leaves the lookup behind, and complains of its error later."""
        loop = asyncio.get_running_loop()
        failure = OSError(f"{host} has no address")
        for _, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                _transport, connection = await loop.create_connection(
                    lambda: Connection(self, origin, hop),
                    str(address[0]),
                    port,
                    ssl=tls,
                    server_hostname=None if tls is None else host,
                )
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure


def _request(method: str, target: URL, body: bytes | Pieces | None, headers: Mapping[str, str]) -> Pieces:
    lines = [f"{method} {target.raw_path_qs} HTTP/1.1", f"Host: {target.raw_authority.rpartition('@')[2]}"]
    sent = dict(headers)
    pieces: Pieces = [body] if isinstance(body, bytes) else body or []
    if body is not None:
        size = sum(map(len, pieces))
        sent |= {"Content-Type": "application/json", "Content-Length": str(size)}
    lines += [f"{name}: {value}" for name, value in sent.items()]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a line break in a header")
    return [head.encode("latin-1") + b"\r\n\r\n", *pieces]
