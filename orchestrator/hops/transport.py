"""How the hops talk HTTP: kept-alive connections, bounded reads, and every failure as a ``HopError``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, TypeVar

import msgspec
from yarl import URL

from orchestrator.core.long_strings import Pieces
from orchestrator.hops import websocket
from orchestrator.hops.connections import Connections
from orchestrator.hops.errors import Garbled, HopError, HopName, TimedOut, TooLarge, error_from_answer
from orchestrator.hops.tls import SYSTEM_TLS, Tls
from orchestrator.hops.websocket import Owner, WebSocket
from render_tier.protocol.unreadable import UNREADABLE

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Reply:
    """``headers`` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Whole:
    """Collects one answer: at most ``max_reply_bytes`` of one with status 200, the beginning of another."""

    def __init__(self, hop: HopName, url: str, max_reply_bytes: int, max_error_bytes: int) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._hop: HopName = hop
        self._url = url
        self._max_reply_bytes = max_reply_bytes
        self._max_error_bytes = max_error_bytes
        self._status = 0
        self._headers: Mapping[str, str] = {}
        # Its bytes are taken out without a copy, which those of a list of pieces are joined in.
        self._body = BytesIO()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers

    def body(self, piece: bytes) -> None:
        if self.reply.done():
            return
        self._body.write(piece)
        size = self._body.tell()
        if self._status != 200:
            if size >= self._max_error_bytes:
                self.complete()
        elif size > self._max_reply_bytes:
            self.failed(self._too_large())

    def _too_large(self) -> HopError:
        most = self._max_reply_bytes
        if self._hop == "render":
            message = f"this request takes more than {most} bytes when it is rendered"
            return TooLarge("render", message, member=self._url)
        message = f"the {self._hop} tier's answer is too large"
        return Garbled(self._hop, message, detail=f"over {most} bytes", member=self._url)

    def complete(self) -> None:
        if not self.reply.done():
            body = self._body.getvalue()
            if self._status != 200:
                body = body[: self._max_error_bytes]
            self.reply.set_result(Reply(self._status, self._headers, body))

    def failed(self, error: HopError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


class Transport:
    """Owns the connections to one kind of server. ``on_exchange(+1 or -1)`` counts open exchanges, for the
    idle integrity check."""

    def __init__(
        self,
        *,
        connect_timeout: float,
        keepalive: float,
        max_reply_bytes: int,
        max_error_bytes: int,
        headers: Mapping[str, str] | None = None,
        tls: Tls = SYSTEM_TLS,
        on_exchange: Callable[[int], None] | None = None,
    ) -> None:
        self.connections = Connections(
            connect_timeout=connect_timeout, keepalive=keepalive, headers=headers, tls=tls
        )
        self._tls = tls
        self._max_reply_bytes = max_reply_bytes
        self._max_error_bytes = max_error_bytes
        self._on_exchange = on_exchange or (lambda _change: None)

    async def close(self) -> None:
        await self.connections.close()

    async def call(
        self,
        hop: HopName,
        method: str,
        url: str,
        body: bytes | Pieces | None,
        *,
        budget: float,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """A request with a whole answer, within ``budget`` seconds; raises ``HopError`` unless the status is
        200."""
        if budget <= 0:
            # A hop that cannot finish is not started.
            raise TimedOut(hop, f"no time is left for the {hop} hop", member=url)
        reply = await self._exchange(hop, method, url, body, headers or {}, budget)
        if reply.status != 200:
            is_cut = len(reply.body) >= self._max_error_bytes
            raise error_from_answer(hop, url, reply.status, reply.body, is_cut=is_cut)
        return reply

    async def get(self, url: str, budget: float) -> Reply:
        """The answer to a GET, whatever its status; of one that is not 200 the beginning. Raises ``HopError``
        when there is none."""
        return await self._exchange("render", "GET", url, None, {}, budget)

    async def connect(self, hop: HopName, url: str, owner: Owner, heartbeat: float) -> WebSocket:
        """A WebSocket, with the same headers as every request. Raises what ``websocket.connect`` does."""
        target = URL(url)
        return await websocket.connect(
            hop,
            target,
            owner,
            headers=self.connections.headers_for(target),
            heartbeat=heartbeat,
            max_message_bytes=self._max_reply_bytes,
            tls=await self._tls.context() if target.scheme == "https" else None,
        )

    async def _exchange(
        self,
        hop: HopName,
        method: str,
        url: str,
        body: bytes | Pieces | None,
        headers: Mapping[str, str],
        budget: float,
    ) -> Reply:
        """Being cancelled closes the connection, which an engine takes as a disconnect."""
        whole = _Whole(hop, url, self._max_reply_bytes, self._max_error_bytes)
        connection = None
        self._on_exchange(+1)
        try:
            with timeout_as_hop_error(hop, url):
                async with asyncio.timeout(budget):
                    connection = await self.connections.send(hop, method, url, body, headers, whole)
                    reply = await whole.reply
            return reply
        finally:
            if connection is not None:
                connection.abort(whole)
            self._on_exchange(-1)


@contextmanager
def timeout_as_hop_error(hop: HopName, url: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TimedOut(hop, f"the {hop} hop timed out", member=url) from error


encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
"""A message as JSON."""


def decoded(
    decoder: msgspec.json.Decoder[Message], hop: HopName, url: str, body: bytes | msgspec.Raw
) -> Message:
    """An answer of ``hop``. Raises ``HopError`` for what is none."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise garbled(hop, url, error) from error


def garbled(hop: HopName, url: str, error: Exception) -> HopError:
    return Garbled(hop, f"the {hop} tier's answer cannot be read", detail=str(error), member=url)
