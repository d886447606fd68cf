"""Threads for work that would hold up the event loop, with a bounded queue in front.

Renders and derenders have separate pools, so that one long prompt delays no open stream. A full queue is an
answer at once (503 with Retry-After), not a longer wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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


class WorkPool:
    def __init__(self, name: str, *, threads: int, max_queue: int, max_wait: float, metrics: Metrics) -> None:
        """``max_wait``: seconds that a job may wait; one that will, or did, wait longer is refused."""
        self._name = name
        self._threads = threads
        self._max_queue = max_queue
        self._max_wait = max_wait
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting = 0
        self._running = 0
        self._mean_seconds = 0.0
        self._wait = metrics.queue_wait.labels(name)
        self._depth = metrics.queue_depth.labels(name)
        self._refused = metrics.refused.labels(f"{name}_queue")

    @property
    def saturated(self) -> bool:
        """Whether the next job would be refused."""
        if self._running < self._threads:
            return False
        return self._waiting >= self._max_queue or self._wait_seconds > self._max_wait

    @property
    def _wait_seconds(self) -> float:
        """How long what waits will take, at the rate of late. What runs is no part of it: nobody knows how
        much of it is left, and one job that took long would close an empty queue."""
        return self._waiting * self._mean_seconds / self._threads

    @property
    def pending(self) -> int:
        return self._waiting + self._running

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` on a thread. Raises Overloaded, and what ``work`` raises.

        A caller that is cancelled while its job waits takes the job out of the queue.
        """
        if self.saturated:
            raise self._refusal()
        loop = asyncio.get_running_loop()
        queued_at = time.perf_counter()
        self._waiting += 1
        self._depth.inc()
        started = False

        def begin() -> None:
            nonlocal started
            started = True
            self._waiting -= 1
            self._depth.dec()
            self._running += 1
            self._wait.observe(time.perf_counter() - queued_at)

        def finish(seconds: float | None) -> None:
            self._running -= 1
            if seconds is not None:
                self._mean_seconds += SMOOTHING * (seconds - self._mean_seconds)

        def job() -> Result:
            loop.call_soon_threadsafe(begin)
            start = time.perf_counter()
            if start - queued_at > self._max_wait:
                loop.call_soon_threadsafe(finish, None)
                raise self._refusal()
            try:
                return work()
            finally:
                loop.call_soon_threadsafe(finish, time.perf_counter() - start)

        future = self._executor.submit(job)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.cancelled() and not started:
                self._waiting -= 1
                self._depth.dec()

    def _refusal(self) -> Overloaded:
        self._refused.inc()
        return Overloaded(
            f"too many requests wait for the {self._name} pool",
            retry_after=min(max(math.ceil(self._wait_seconds), 1), LONGEST_RETRY_AFTER),
        )

    def close(self) -> None:
        """Let running jobs end; drop those that wait."""
        self._executor.shutdown(wait=True, cancel_futures=True)
