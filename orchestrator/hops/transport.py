"""How the hops talk HTTP: one shared aiohttp session, bounded reads, and every failure as a ``HopError``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from orchestrator.hops.errors import (
    Absent,
    Garbled,
    HopError,
    HopName,
    NotOffered,
    TimedOut,
    Unreachable,
    error_from_answer,
)

JSON_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """Owns the session. ``on_exchange(+1 or -1)`` counts open exchanges, for the idle integrity check."""

    def __init__(
        self,
        *,
        connect_timeout: float,
        keepalive: float,
        max_reply_bytes: int,
        max_error_bytes: int,
        headers: Mapping[str, str] | None = None,
        on_exchange: Callable[[int], None] | None = None,
    ) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._max_error_bytes = max_error_bytes
        self._on_exchange = on_exchange or (lambda _change: None)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )

    async def close(self) -> None:
        await self._session.close()
        # Connections that were broken off close in the loop's next turn.
        await asyncio.sleep(0)

    @asynccontextmanager
    async def open(
        self, hop: HopName, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One exchange, from request to the closing of its response. The body is read inside.

        Leaving the context early closes the connection, which an engine takes as a disconnect.
        """
        sent = {**JSON_HEADERS, **headers} if body is not None else headers
        self._on_exchange(+1)
        try:
            with mapped_errors(hop, url):
                async with self._session.request(
                    method, url, data=body, headers=sent, allow_redirects=False
                ) as response:
                    yield response
        finally:
            self._on_exchange(-1)

    async def read(self, hop: HopName, url: str, response: aiohttp.ClientResponse, limit: int) -> bytes:
        """The whole body, at most ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > limit:
                raise Garbled(
                    hop, f"the {hop} tier's answer is too large", detail=f"over {limit} bytes", member=url
                )
            parts.append(part)
        return b"".join(parts)

    async def expect_ok(self, hop: HopName, url: str, response: aiohttp.ClientResponse) -> None:
        """Raise the error that a non-200 answer is."""
        if response.status != 200:
            parts: list[bytes] = []
            size = 0
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size >= self._max_error_bytes:
                    break
            raise error_from_answer(hop, url, response.status, b"".join(parts)[: self._max_error_bytes])

    async def call(
        self,
        hop: HopName,
        method: str,
        url: str,
        body: bytes | None,
        *,
        budget: float,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """A request with a whole answer, within ``budget`` seconds; raises ``HopError`` unless the status is
        200."""
        if budget <= 0:
            # A hop that cannot finish is not started.
            raise TimedOut(hop, f"no time is left for the {hop} hop", member=url)
        with timeout_as_hop_error(hop, url):
            async with asyncio.timeout(budget), self.open(hop, method, url, body, headers or {}) as response:
                await self.expect_ok(hop, url, response)
                content = await self.read(hop, url, response, self._max_reply_bytes)
                return Reply(response.status, response.headers, content)

    async def connect(self, hop: HopName, url: str, heartbeat: float) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket. ``heartbeat``: seconds between pings that find out whether the other side is alive.
        Raises ``NotOffered`` when the handshake is refused, another ``HopError`` when there is nobody."""
        with mapped_errors(hop, url):
            try:
                return await self._session.ws_connect(
                    url,
                    heartbeat=heartbeat,
                    max_msg_size=self._max_reply_bytes,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
            except aiohttp.WSServerHandshakeError as error:
                raise NotOffered(
                    hop, f"the {hop} tier offers no sessions", detail=repr(error), member=url
                ) from error

    async def status(self, url: str, budget: float) -> int:
        """The status of a GET whose answer does not matter. Raises ``HopError`` when there is none."""
        with timeout_as_hop_error("render", url):
            async with asyncio.timeout(budget), self.open("render", "GET", url, None, {}) as response:
                await self.read("render", url, response, self._max_reply_bytes)
                return response.status


@contextmanager
def mapped_errors(hop: HopName, url: str) -> Iterator[None]:
    """Transport failures as ``HopError``."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise Absent(hop, f"the {hop} tier cannot be reached", detail=repr(error), member=url) from error
    except aiohttp.ServerTimeoutError as error:
        raise TimedOut(hop, f"the {hop} hop timed out", detail=repr(error), member=url) from error
    except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError) as error:
        raise Unreachable(
            hop, f"the connection to the {hop} tier was lost", detail=repr(error), member=url
        ) from error
    except (aiohttp.ClientError, ValueError) as error:
        # ValueError: what the HTTP parser raises for lines it cannot take.
        raise Garbled(hop, f"the {hop} tier's answer is not HTTP", detail=repr(error), member=url) from error


@contextmanager
def timeout_as_hop_error(hop: HopName, url: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TimedOut(hop, f"the {hop} hop timed out", member=url) from error


def encode(message: Any) -> bytes:
    return msgspec.json.encode(message)


def garbled(hop: HopName, url: str, error: Exception) -> HopError:
    return Garbled(hop, f"the {hop} tier's answer cannot be read", detail=str(error), member=url)
