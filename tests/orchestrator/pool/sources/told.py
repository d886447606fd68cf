"""Follows a source and keeps what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from orchestrator.core.membership import MemberSpec
from orchestrator.pool.sources.source import Source


class Told:
    def __init__(self) -> None:
        self.lists: list[list[MemberSpec]] = []
        self.failures: list[str] = []
        self._news = asyncio.Event()

    def tell(self, specs: Sequence[MemberSpec]) -> None:
        self.lists.append(list(specs))
        self._news.set()

    def failed(self, error: str) -> None:
        self.failures.append(error)
        self._news.set()

    async def urls(self, *expected: str) -> None:
        """Wait until these are the members."""
        while not self.lists or [spec.url for spec in self.lists[-1]] != list(expected):
            await self._news.wait()
            self._news.clear()

    async def failure(self, count: int = 1) -> str:
        """Wait for the ``count``-th failure."""
        while len(self.failures) < count:
            await self._news.wait()
            self._news.clear()
        return self.failures[-1]


@asynccontextmanager
async def followed(source: Source) -> AsyncIterator[Told]:
    told = Told()
    task = asyncio.create_task(source.follow(told.tell, told.failed))
    try:
        yield told
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])
