"""Redis or Valkey: what several orchestrators keep for each other, by key and for a time.

Whatever is wrong with it ends within the time of one operation as ``StoreDown``, and then it is left alone
for a while, so that a store that hangs costs a request now and then its timeout and the others nothing. Its
URL may hold a password, so neither it nor what the library says of it is told to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import structlog

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger(__name__)

Read = TypeVar("Read")


class StoreDown(Exception):
    """It does not answer, or not in time, or was left alone because it did not."""


class SharedStore:
    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        timeout: float,
        pause: float,
        connections: int,
        now: Callable[[], float],
        on_failed: Callable[[str], None],
    ) -> None:
        """``timeout`` of one operation, ``pause`` after one that failed, in seconds as ``now``, a monotonic
        clock. ``on_failed`` is told each operation that failed or was left out."""
        self._prefix = prefix
        self._timeout = timeout
        self._pause = pause
        self._now = now
        self._on_failed = on_failed
        self._redis = _client(url, connections, timeout)
        self._down_until = 0.0

    def __repr__(self) -> str:
        return f"<SharedStore {'down' if self._now() < self._down_until else 'up'}>"

    async def get(self, key: str) -> bytes | None:
        """Raises ``StoreDown``, as all of these do."""
        [value] = await self.get_many([key])
        return value

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        names = [self._name(key) for key in keys]

        async def asked() -> list[bytes | None]:
            return cast("list[bytes | None]", await self._redis.mget(names))

        return await self._ask("get", asked)

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        await self._ask("put", lambda: self._redis.set(self._name(key), value, px=_milliseconds(seconds)))

    async def take(self, key: str) -> tuple[bytes, float] | None:
        """The value, which is gone then, and the seconds that it would have had left. Given to one asker
        alone."""

        async def asked() -> tuple[bytes, float] | None:
            async with self._redis.pipeline(transaction=True) as both:
                both.pttl(self._name(key))
                both.getdel(self._name(key))
                left, value = await both.execute()
            return None if value is None else (value, max(left, 0) / 1000)

        return await self._ask("take", asked)

    async def mark(self, key: str, bits: Sequence[int], seconds: float) -> None:
        """Set these bits of the value, which is zeros where there is none, and keep it for so long."""

        async def asked() -> None:
            async with self._redis.pipeline(transaction=True) as all_of_them:
                for bit in bits:
                    all_of_them.setbit(self._name(key), bit, 1)
                all_of_them.pexpire(self._name(key), _milliseconds(seconds))
                await all_of_them.execute()

        await self._ask("put", asked)

    async def close(self) -> None:
        await self._redis.aclose()

    def _name(self, key: str) -> str:
        return f"{self._prefix}:{key}"

    async def _ask(self, operation: str, call: Callable[[], Awaitable[Read]]) -> Read:
        from redis.exceptions import RedisError

        if self._now() < self._down_until:
            self._on_failed(operation)
            raise StoreDown
        try:
            async with asyncio.timeout(self._timeout):
                return await call()
        except (RedisError, OSError, TimeoutError) as error:
            self._down_until = self._now() + self._pause
            self._on_failed(operation)
            log.warning("store failed", operation=operation, error=type(error).__name__)
            raise StoreDown from None


def _client(url: str, connections: int, timeout: float) -> Redis:
    # Imported where a store is configured, and nowhere else.
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    pool = BlockingConnectionPool.from_url(
        url, max_connections=connections, timeout=timeout, retry=Retry(NoBackoff(), 0)
    )
    return Redis(connection_pool=pool)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
