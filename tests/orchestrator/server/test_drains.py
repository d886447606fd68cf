"""What an operator has drained, agreed on by workers that share a directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.core.membership import Key
from orchestrator.server.drains import Drains
from tests.orchestrator.conftest import until

A: Key = ("decode", "http://a:1")
B: Key = ("prefill", "http://b:1")


class Worker:
    def __init__(self, directory: Path | None) -> None:
        self.server = False
        self.members: frozenset[Key] = frozenset()
        self.drains = Drains(directory, 0.005, self._changed)

    def _changed(self, server: bool, members: frozenset[Key]) -> None:
        self.server, self.members = server, members


@asynccontextmanager
async def workers(directory: Path | None) -> AsyncIterator[tuple[Worker, Worker]]:
    pair = Worker(directory), Worker(directory)
    tasks = [asyncio.create_task(worker.drains.follow()) for worker in pair]
    try:
        yield pair
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_what_one_worker_is_told_all_do(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, second):
        await first.drains.members([A], drained=True)
        assert first.members == {A}
        await second.drains.members([B], drained=True)
        await until(lambda: first.members == second.members == {A, B})
        await second.drains.server(drained=True)
        await first.drains.members([A, B], drained=False)
        await until(lambda: second.members == frozenset() and first.server and second.server)
        await first.drains.server(drained=False)
        await until(lambda: not second.server)


async def test_a_list_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    async with workers(tmp_path) as (first, second):
        await first.drains.members([A], drained=True)
        await until(lambda: second.members == {A})
        (tmp_path / "drained.json").write_text("{")
        await asyncio.sleep(0.05)
        assert first.members == second.members == {A}
        await second.drains.members([B], drained=True)
        await until(lambda: first.members == {A, B})


async def test_a_lone_worker_keeps_it_to_itself() -> None:
    async with workers(None) as (first, second):
        await first.drains.members([A], drained=True)
        await first.drains.server(drained=True)
        assert (first.server, first.members) == (True, {A})
        assert (second.server, second.members) == (False, frozenset())
