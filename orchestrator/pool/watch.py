"""Background looks at members, each at its own pace, so that an idle member's death is known before a request
meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool

Look = Callable[[Pool, Member], Awaitable[None]]
"""Must be bounded in time and must not raise."""


SHORTEST: Final = 0.1
"""Of an interval, between two looks at a member to which things happen all the time."""


class Watch:
    """``interval``: seconds between two looks at a member to which nothing happens."""

    def __init__(self, look: Look, interval: float) -> None:
        self._look = look
        self._interval = interval
        self._tasks: dict[Member, asyncio.Task[None]] = {}
        self._soon: dict[Member, asyncio.Event] = {}

    def __repr__(self) -> str:
        return f"<Watch {list(self._tasks)!r}>"

    def begin(self, pool: Pool, member: Member, *, at_once: bool) -> None:
        """Does nothing for a member that is being watched. Otherwise the first look is after an interval, or
        ``at_once``."""
        if member not in self._tasks:
            self._soon[member] = soon = asyncio.Event()
            if at_once:
                soon.set()
            task = asyncio.get_running_loop().create_task(self._watch(pool, member, soon), name="watch")
            self._tasks[member] = task

    def end(self, member: Member) -> None:
        task = self._tasks.pop(member, None)
        self._soon.pop(member, None)
        if task is not None:
            task.cancel()

    def soon(self, member: Member) -> None:
        """Something has happened to it: do not wait for the interval's end."""
        if member in self._soon:
            self._soon[member].set()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for member in list(self._tasks):
            self.end(member)
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self, pool: Pool, member: Member, soon: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval):
                    await soon.wait()
            except TimeoutError:
                pass
            soon.clear()
            await self._look(pool, member)
            await asyncio.sleep(SHORTEST * self._interval)
