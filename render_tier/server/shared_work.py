"""Work that is done once for all who want it at the same time, and given up when nobody does any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")


class _Flight(Generic[Result]):
    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.task = asyncio.create_task(work)
        self.waiting = 0


class SharedWork(Generic[Key, Result]):
    def __init__(self) -> None:
        self._under_way: dict[Key, _Flight[Result]] = {}

    async def result(self, key: Key, begin: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Of what is under way, or else of ``begin()``. Raises what that raises. The last one that is
        cancelled cancels the work, and waits for its end, with what it holds for it."""
        flight = self._under_way.get(key)
        if flight is None:
            flight = self._under_way[key] = _Flight(begin())
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                if self._under_way.get(key) is flight:
                    del self._under_way[key]
                if flight.task.cancel():
                    await asyncio.wait([flight.task])
