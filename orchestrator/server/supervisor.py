"""Owns every background task, so that none is lost, none fails silently, and an idle process has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from orchestrator.server.integrity import Integrity

log = structlog.get_logger(__name__)


class Supervisor:
    def __init__(self, integrity: Integrity) -> None:
        self._integrity = integrity
        self._tasks: set[asyncio.Task[None]] = set()
        self.crashes = 0
        """Exceptions that nobody expected: faults of this program, whatever others did."""

    def __repr__(self) -> str:
        return f"<Supervisor {sorted(task.get_name() for task in self._tasks)}>"

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        on_crash: Callable[[Exception], None] | None = None,
    ) -> asyncio.Task[None]:
        """Run ``work`` to its end. ``on_crash`` is told of an exception that nobody expected."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        self._integrity.tasks += 1

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._integrity.tasks -= 1
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                self.crashed(name, error, on_crash)

        task.add_done_callback(ended)
        return task

    def crashed(self, name: str, error: Exception, on_crash: Callable[[Exception], None] | None) -> None:
        """As `spawn` has it, for work that is no task."""
        self.crashes += 1
        log.error("task crashed", task=name, exc_info=error)
        if on_crash is not None:
            on_crash(error)

    async def close(self, grace: float) -> None:
        """Wait up to ``grace`` seconds for the tasks to end by themselves, then cancel what is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
