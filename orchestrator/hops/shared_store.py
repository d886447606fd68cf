"""Redis or Valkey: what several orchestrators keep for each other, by key and for a time.

Whatever is wrong with it ends within the time of one operation as ``StoreDown``, and then it is left alone
for a while, so that a store that hangs costs a request now and then its timeout and the others nothing. Its
URL may hold a password, so neither it nor what the library says of it is told to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar, cast

import structlog

if TYPE_CHECKING:
    from redis.asyncio import BlockingConnectionPool, Redis

log = structlog.get_logger(__name__)

SCHEMES: Final = ("redis://", "rediss://", "unix://")

Read = TypeVar("Read")


class StoreDown(Exception):
    """It does not answer, or not in time, or was left alone because it did not."""


@dataclass(frozen=True, slots=True)
class Taken:
    key: str
    value: bytes
    seconds_left: float
    """Until it would have ended."""


_NO_MARKS: Final[Mapping[str, Sequence[int]]] = MappingProxyType({})


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
        self.timeout = timeout
        self._pause = pause
        self._now = now
        self._on_failed = on_failed
        self._redis = _client(url, connections, timeout)
        self._down_until = 0.0

    def __repr__(self) -> str:
        return f"<SharedStore {'down' if self._now() < self._down_until else 'up'}>"

    async def get(self, key: str) -> bytes | None:
        """Raises ``StoreDown``, as all of these do."""
        [value] = await self._ask("get", lambda: self._get([key]))
        return value

    async def put(
        self, key: str, value: bytes, seconds: float, marks: Mapping[str, Sequence[int]] = _NO_MARKS
    ) -> None:
        """``marks``: bits that are set in the values of other keys, which are zeros where they are not there,
        and are kept for as long from now."""

        async def asked() -> None:
            milliseconds = max(1, int(seconds * 1000))
            async with self._redis.pipeline(transaction=True) as together:
                together.set(self._name(key), value, px=milliseconds)
                for marked, bits in marks.items():
                    for bit in bits:
                        together.setbit(self._name(marked), bit, 1)
                    together.pexpire(self._name(marked), milliseconds)
                await together.execute()

        await self._ask("put", asked)

    async def take_first(
        self, marks: Sequence[str], keys: Callable[[Sequence[bytes | None]], Iterable[str]]
    ) -> Taken | None:
        """The value of the first of ``keys`` that is there, by the values of ``marks``. It is gone then: each
        is given to one asker alone."""

        async def asked() -> Taken | None:
            for key in keys(await self._get(marks)):
                async with self._redis.pipeline(transaction=True) as together:
                    together.pttl(self._name(key))
                    together.getdel(self._name(key))
                    left, value = await together.execute()
                if value is not None:
                    return Taken(key, value, max(left, 0) / 1000)
            return None

        return await self._ask("take", asked)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _get(self, keys: Sequence[str]) -> list[bytes | None]:
        return cast("list[bytes | None]", await self._redis.mget([self._name(key) for key in keys]))

    def _name(self, key: str) -> str:
        return f"{self._prefix}:{key}"

    async def _ask(self, operation: str, call: Callable[[], Awaitable[Read]]) -> Read:
        from redis.exceptions import RedisError

        if self._now() < self._down_until:
            self._on_failed(operation)
            raise StoreDown
        try:
            async with asyncio.timeout(self.timeout):
                return await call()
        except (RedisError, OSError, TimeoutError) as error:
            self._down_until = self._now() + self._pause
            self._on_failed(operation)
            log.warning("store failed", operation=operation, error=type(error).__name__)
            raise StoreDown from None


def check_url(url: str) -> None:
    """Raises ``ValueError``, which does not repeat it."""
    if not url.startswith(SCHEMES):
        raise ValueError(f"must begin with one of {', '.join(SCHEMES)}")
    try:
        _pool(url, 1, 1.0).make_connection()  # type: ignore[no-untyped-call]
    except ImportError:
        raise ValueError("needs the extra redis: pip install redis") from None
    except (ValueError, TypeError):
        raise ValueError("is not the URL of a store (in a password write signs as %40)") from None


def _client(url: str, connections: int, timeout: float) -> Redis:
    from redis.asyncio import Redis

    return Redis.from_pool(_pool(url, connections, timeout))


def _pool(url: str, connections: int, timeout: float) -> BlockingConnectionPool:
    # Imported where a store is configured, and nowhere else.
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        driver_info=None,  # which is read from files at each connection
    )
