"""uvicorn's HTTP/1.1 connection with bounds on what comes before a request is one.

uvicorn leaves the size and the time of a request's head open, and reads on for ever when an answer did not
need the whole body. Here a head has ``head_bytes`` and ``head_seconds``, from the first byte that the
connection may send; what is left of a body after its answer has ``head_seconds`` too. Framing that two
readers could read differently is refused: by llhttp itself (two lengths, a length beside chunks, folded
lines, bare control characters), and here what it lets pass (two hosts or none, HTTP/0.9). Requests that were
whole before it, in the same piece perhaps, are answered all the same. A client that does
not read its answer holds what that is made of, so there is a bound on that too, where it is asked for.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from render_tier.protocol.errors import ErrorBody, ErrorInfo

TOO_LARGE = "The request's head is too large."


def bounded_http(
    head_bytes: int, head_seconds: float, read_seconds: float | None = None
) -> type[HttpToolsProtocol]:
    """For uvicorn's option ``http``. ``read_seconds``: that a client may take to read what is written at a
    time, before its connection is cut; None for as long as it likes."""
    bounds = {"head_bytes": head_bytes, "head_seconds": head_seconds, "read_seconds": read_seconds}
    return type("BoundedHttp", (_BoundedHttp,), bounds)


class _BoundedHttp(HttpToolsProtocol):
    head_bytes: int
    head_seconds: float
    read_seconds: float | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_size = 0
        """Bytes that have come of a head which has begun; 0: of none."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        """Runs while a client has much left to read."""
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._has_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.read_seconds is not None and self._unread is None:
            # To close it in order would wait for the client too.
            self._unread = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._has_read()
        super().resume_writing()

    def _has_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_size += len(data)
        super().data_received(data)
        # A head that has ended within this piece has been looked at there.
        if self._in_head and self._head_size:
            if self._head_size > self.head_bytes:
                self._refuse(431, TOO_LARGE)
            elif self._timer is None and not self._refused:
                self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # It may have come behind another request, in one piece with it.
        self._head_size = max(self._head_size, 1)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        hosts = sum(name == b"host" for name, _ in self.headers)
        version = self.parser.get_http_version()
        self._head_size = 0
        if size > self.head_bytes:
            self._refuse(431, TOO_LARGE)
        elif version not in ("1.0", "1.1"):
            self._refuse(400, "The protocol is HTTP/1.1 or HTTP/1.0.")
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refuse(400, "A request has one Host header.")
        if not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            self._in_head = True
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._refused and not self.pipeline:
            self.transport.close()
        super().on_response_complete()
        if self._refused:
            return
        if not self._in_head and self._timer is None and not self.transport.is_closing():
            self._start_timer()

    def handle_websocket_upgrade(self) -> None:
        if not self._refused:
            super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Nothing that comes from now on is read. What was whole before it is answered, and the connection is
        closed behind that; where there is no such request, it is closed with an error, unless that would
        stand in the middle of an answer."""
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or self._is_in_first_body:
            body = msgspec.json.encode(ErrorBody(ErrorInfo(message, "BadRequestError", None, status)))
            head = (
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()
        elif not self.cycle.more_body:
            self.cycle.keep_alive = False  # which its answer says
        elif self.pipeline:
            self.pipeline.popleft()  # it is the one whose body is broken
        else:
            self.transport.close()

    @property
    def _is_in_first_body(self) -> bool:
        """What comes is the body of the only request that is under way, and nothing of its answer is out."""
        return self.cycle.more_body and not self.cycle.response_started and not self.pipeline

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_head and self._head_size:
            self._refuse(408, "The request's head did not arrive in time.")
        else:
            self.transport.close()
