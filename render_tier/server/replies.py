"""Plain ASGI replies for the hot routes and for errors: no response objects, no serialisation twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive, Send

from render_tier.protocol.errors import ApiError
from render_tier.server.pools import Overloaded

RawHeaders = list[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    on_sent: Callable[[], None] | None = None
    """Called once it is sent, or cannot be."""
    rest: tuple[bytes, ...] = ()
    """What follows `body`, where that is large and kept anyway: it is sent from where it is."""

    @property
    def size(self) -> int:
        return len(self.body) + sum(map(len, self.rest))

    @property
    def whole(self) -> bytes:
        return b"".join((self.body, *self.rest))

    async def send(self, send: Send) -> None:
        headers: RawHeaders = [JSON, (b"content-length", str(self.size).encode()), *self.headers]
        try:
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            last = self.body
            if self.rest:
                for piece in (self.body, *self.rest):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                # Each message waits for those before it: after this one nothing is left to be sent.
                last = b""
            await send({"type": "http.response.body", "body": last})
        finally:
            if self.on_sent is not None:
                self.on_sent()


def error_reply(error: ApiError, *extra: tuple[bytes, bytes]) -> Reply:
    if isinstance(error, Overloaded):
        extra = (*extra, (b"retry-after", str(error.retry_after).encode()))
    return Reply(error.status, error.encode(), extra)


async def refuse_handshake(reply: Reply, receive: Receive, send: Send) -> None:
    """Answer a WebSocket handshake with an HTTP error."""
    await receive()
    headers: RawHeaders = [JSON, (b"content-length", str(len(reply.body)).encode()), *reply.headers]
    await send({"type": "websocket.http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": reply.body})


METHOD_NOT_ALLOWED = Reply(405, b'{"detail":"Method Not Allowed"}', ((b"allow", b"POST"),))
UNAUTHORIZED = Reply(401, b'{"error":"Unauthorized"}')
