"""The queue before a pool: bounded in length and in time, with an answer that says when to come again."""

from __future__ import annotations

import asyncio
import gc
import threading
from weakref import ref

import pytest

from render_tier.server.metrics import build_metrics
from render_tier.server.pools import LONGEST_RETRY_AFTER, Overloaded, WorkPool


def pool(*, max_queue: int = 10, max_wait: float = 60.0) -> WorkPool:
    return WorkPool("render", threads=1, max_queue=max_queue, max_wait=max_wait, metrics=build_metrics())


async def started(work_pool: WorkPool, release: threading.Event) -> asyncio.Task[bool]:
    """A job that runs until ``release``; returns once it runs."""
    runs = threading.Event()

    def job() -> bool:
        runs.set()
        return release.wait(30)

    task = asyncio.create_task(work_pool.run(job))
    await asyncio.to_thread(runs.wait, 30)
    await asyncio.sleep(0.01)
    return task


async def test_a_full_queue_refuses() -> None:
    work_pool, release = pool(max_queue=1), threading.Event()
    running = await started(work_pool, release)
    waiting = asyncio.create_task(work_pool.run(lambda: True))
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded):
        await work_pool.run(lambda: True)
    await asyncio.to_thread(release.set)
    assert await running
    assert await waiting
    await asyncio.to_thread(work_pool.close)


async def test_a_job_that_waited_too_long_is_refused_undone() -> None:
    work_pool, release = pool(max_wait=0.05), threading.Event()
    running = await started(work_pool, release)
    done: list[int] = []
    late = asyncio.create_task(work_pool.run(lambda: done.append(1)))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(release.set)
    assert await running
    with pytest.raises(Overloaded):
        await late
    assert done == []
    await asyncio.sleep(0.01)
    assert work_pool.pending == 0
    await asyncio.to_thread(work_pool.close)


async def test_a_job_that_would_wait_too_long_is_refused_at_once_and_told_when_to_come_again() -> None:
    work_pool, release = pool(max_wait=100.0), threading.Event()
    work_pool._mean_seconds = 12.0
    running = await started(work_pool, release)
    with_room = asyncio.create_task(work_pool.run(lambda: True))
    await asyncio.sleep(0.01)
    assert not work_pool.saturated
    work_pool._mean_seconds = 120.0
    assert work_pool.saturated
    with pytest.raises(Overloaded) as refused:
        await work_pool.run(lambda: True)
    assert refused.value.retry_after == LONGEST_RETRY_AFTER
    await asyncio.to_thread(release.set)
    assert await running
    assert await with_room
    await asyncio.to_thread(work_pool.close)


async def test_an_idle_pool_takes_a_job_however_long_the_last_ones_took() -> None:
    work_pool = pool(max_wait=1.0)
    work_pool._mean_seconds = 60.0
    assert await work_pool.run(lambda: True)
    await asyncio.to_thread(work_pool.close)


async def test_an_empty_queue_takes_a_job_however_long_the_last_ones_took() -> None:
    work_pool, release = pool(max_wait=30.0), threading.Event()
    running = await started(work_pool, release)
    work_pool._mean_seconds = 60.0
    assert not work_pool.saturated
    waiting = asyncio.create_task(work_pool.run(lambda: True))
    await asyncio.sleep(0.01)
    # Behind one that will take longer than may be waited there is no room.
    assert work_pool.saturated
    await asyncio.to_thread(release.set)
    assert await running
    assert await waiting
    await asyncio.to_thread(work_pool.close)


async def test_who_gives_up_a_job_that_runs_waits_for_its_end_and_else_takes_it_away() -> None:
    work_pool, release = pool(), threading.Event()
    running = await started(work_pool, release)
    done: list[int] = []
    waiting = asyncio.create_task(work_pool.run(lambda: done.append(1)))
    await asyncio.sleep(0.01)
    for task in (running, waiting):
        task.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0.01)
    assert (running.done(), work_pool.pending) == (False, 1)
    await asyncio.to_thread(release.set)
    await asyncio.wait([running])
    assert running.cancelled()
    assert (done, work_pool.pending) == ([], 0)
    await asyncio.to_thread(work_pool.close)


async def test_a_pool_that_closes_drops_what_waits() -> None:
    work_pool, release = pool(), threading.Event()
    running = await started(work_pool, release)
    waiting = asyncio.create_task(work_pool.run(lambda: True))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(asyncio.to_thread(work_pool.close))
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await asyncio.to_thread(release.set)
    assert await running
    await closing


async def test_a_job_that_was_given_up_keeps_nothing_in_memory() -> None:
    """Its place in the queue outlives it, for as long as the thread takes for the job before."""

    class File:
        def length(self) -> int:
            return 0

    work_pool, release = pool(), threading.Event()
    running = await started(work_pool, release)
    file = File()
    gone, waiting = ref(file), asyncio.create_task(work_pool.run(file.length))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    del file, waiting
    gc.collect()
    assert gone() is None
    await asyncio.to_thread(release.set)
    assert await running
    await asyncio.to_thread(work_pool.close)
