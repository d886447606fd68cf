"""Threads for work that would hold up the event loop, with a bounded queue in front.

Renders and derenders have separate pools, so that one long prompt delays no open stream. A full queue is an
answer at once (503 with Retry-After), not a longer wait.

A job wakes the event loop once, when it is done: each wake-up while its thread runs Python would cost both of
them a wait for the interpreter lock. So a thread takes a job by removing it from the set of those that wait,
which one side alone succeeds in; whoever gives a job up does the same. A thread cannot be stopped: who gives
up a job that one is at waits for its end, and holds until then what it holds for it.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from render_tier.protocol.errors import Unavailable
from render_tier.server.metrics import Metrics

Result = TypeVar("Result")
SMOOTHING = 0.1
"""Weight of the newest job in the running mean of job durations."""
LONGEST_RETRY_AFTER = 30


class Overloaded(Unavailable):
    """Refused for load; ``retry_after`` in whole seconds."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class _Job:
    """``answer`` is settled by the event loop, from what a thread left in the others."""

    __slots__ = (
        *("answer", "error", "given_up", "loop", "over", "queued_at", "result", "seconds", "waited", "work"),
    )

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.queued_at = time.perf_counter()
        self.waited = 0.0
        self.seconds: float | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False
        """As far as the event loop knows."""
        self.given_up: asyncio.Future[None] | None = None
        """Settled when it is over, where its caller has been cancelled."""


def _nothing() -> None:
    """The work of a job that was given up, which keeps nothing of its caller's in memory."""


class WorkPool:
    def __init__(self, name: str, *, threads: int, max_queue: int, max_wait: float, metrics: Metrics) -> None:
        """``max_wait``: seconds that a job may wait; one that will, or did, wait longer is refused."""
        self._name = name
        self._max_queue = max_queue
        self._max_wait = max_wait
        self._mean_seconds = 0.0
        self._waiting: set[_Job] = set()
        self._running: set[_Job] = set()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._wait = metrics.queue_wait.labels(name)
        self._refused = metrics.refused.labels(f"{name}_queue")
        depth = metrics.queue_depth.labels(name)
        metrics.on_refresh.append(lambda: depth.set(len(self._waiting)))
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}_{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def saturated(self) -> bool:
        """Whether the next job would be refused."""
        return self._behind >= 0 and (self._behind >= self._max_queue or self._wait_seconds > self._max_wait)

    @property
    def _behind(self) -> int:
        """Jobs that no thread is free for; less than zero when a thread is left over."""
        return len(self._waiting) + len(self._running) - len(self._threads)

    @property
    def _wait_seconds(self) -> float:
        """How long what waits will take, at the rate of late. What runs is no part of it: nobody knows how
        much of it is left, and one job that took long would close an empty queue."""
        return max(self._behind, 0) * self._mean_seconds / len(self._threads)

    @property
    def pending(self) -> int:
        return len(self._waiting) + len(self._running)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on a thread. Raises Overloaded, and what ``work`` raises.

        A caller that is cancelled takes its job out of the queue, or waits for its end once it runs.
        """
        if self.saturated:
            raise self._refusal()
        job = _Job(work)
        self._waiting.add(job)
        self._jobs.put(job)
        try:
            result: Result = await job.answer
            return result
        except asyncio.CancelledError:
            if self._taken(job):
                job.work = _nothing  # it is in the queue until a thread comes to it, which may take long
            elif not job.over:
                job.given_up = job.loop.create_future()
                await job.given_up
            raise
        finally:
            self._waiting.discard(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._taken(job):
                self._running.add(job)
                self._do(job)
                self._running.discard(job)
                try:
                    job.loop.call_soon_threadsafe(self._finish, job)
                except RuntimeError:  # the event loop is closed, and with it whoever waited
                    continue
            del job  # what it holds is not to live on until the next one comes

    def _taken(self, job: _Job) -> bool:
        try:
            self._waiting.remove(job)
        except KeyError:
            return False
        return True

    def _do(self, job: _Job) -> None:
        start = time.perf_counter()
        job.waited = start - job.queued_at
        if job.waited > self._max_wait:
            job.error = self._refusal()
            return
        try:
            job.result = job.work()
        except BaseException as error:
            job.error = error
        job.seconds = time.perf_counter() - start

    def _finish(self, job: _Job) -> None:
        self._wait.observe(job.waited)
        if job.seconds is not None:
            self._mean_seconds += SMOOTHING * (job.seconds - self._mean_seconds)
        if not job.answer.done():  # else its caller is gone
            if job.error is not None:
                job.answer.set_exception(job.error)
            else:
                job.answer.set_result(job.result)
        job.error = None  # its traceback leads back to the job
        self._end(job)

    @staticmethod
    def _end(job: _Job) -> None:
        job.over = True
        job.answer.cancel()  # where it is not settled
        if job.given_up is not None and not job.given_up.done():
            job.given_up.set_result(None)

    def _refusal(self) -> Overloaded:
        self._refused.inc()
        return Overloaded(
            f"too many requests wait for the {self._name} pool",
            retry_after=min(max(math.ceil(self._wait_seconds), 1), LONGEST_RETRY_AFTER),
        )

    def close(self) -> None:
        """Let running jobs end; drop those that wait."""
        for job in list(self._waiting):
            if self._taken(job):
                job.loop.call_soon_threadsafe(self._end, job)
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
