"""Many streams at once at a steady pace: time per chunk, cores, and what happens to renders meanwhile.

The streams and the renders have a client process each, on other cores than the server's, and the renders' has
precedence: what a client waits for itself is not the server's.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import uvloop

from benchmarks.derender.clients import CallStream, Http, SessionStream, connect
from benchmarks.derender.cores import before_others
from benchmarks.derender.workload import Workload
from benchmarks.measure import cpu_seconds, percentile

Way = Literal["all in each call", "digest", "session", "session in steps"]
STREAMS_PER_LINK = 64
STEPS = 4
"""Engines whose streams move on together, where streams go in steps; else they are spread evenly."""
RENDERS_A_SECOND = 80
SMALL_RENDER = json.dumps(
    {"model": "qwen3", "messages": [{"role": "user", "content": "How cold is it?"}]}
).encode()


@dataclass
class Load:
    """``times``: seconds of each chunk. ``late``: chunks that began after their successor's time.
    ``cpu``: seconds of the server's. ``renders``: seconds of small renders in the second half."""

    streams: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    late: int = 0
    times: list[float] = field(default_factory=list)
    renders: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return len(self.times) / self.seconds

    @property
    def cpu_per_token(self) -> float:
        return self.cpu / len(self.times)

    def row(self, way: str) -> list[str]:
        return [
            way,
            str(self.streams),
            f"{self.rate:,.0f}",
            f"{percentile(self.times, 0.5) * 1e3:.2f}",
            f"{percentile(self.times, 0.99) * 1e3:.2f}",
            f"{self.cpu_per_token * 1e6:.0f}",
            f"{self.cpu_per_token * 1e3:.3f}",
            f"{self.late / len(self.times):.1%}",
        ]


HEADER = [
    "way",
    "streams",
    "tokens/s",
    "p50 ms",
    "p99 ms",
    "CPU µs a token",
    "cores per 1,000 tokens/s",
    "late",
]


@dataclass(frozen=True)
class Job:
    """``pid`` and ``url`` of the server. ``pace``: tokens a second of each stream. The load is measured for
    ``seconds`` without renders and for as long again with them."""

    url: str
    pid: int
    work: Workload
    way: Way
    streams: int
    pace: float
    seconds: float


class Clients:
    """The client processes."""

    def __init__(self, *, before_others: bool) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._streams = ProcessPoolExecutor(1, spawn, _prepare, (1, before_others))
        self._renders = ProcessPoolExecutor(1, spawn, _prepare, (2, before_others))

    def close(self) -> None:
        self._streams.shutdown()
        self._renders.shutdown()

    def idle(self, url: str, seconds: float) -> list[float]:
        """Times of small renders by themselves."""
        return self._renders.submit(_renders_from, url, time.time() + 0.2, seconds).result()

    def run(self, job: Job) -> Load:
        first = self._streams.submit(_load, job)
        begin: float = first.result()
        loading = self._streams.submit(_finish)
        rendering = self._renders.submit(_renders_from, job.url, begin + job.seconds, job.seconds)
        load = loading.result()
        load.renders = rendering.result()
        return load


def _prepare(rank: int, before: bool) -> None:
    if before:
        before_others(os.getpid(), rank)
    else:
        os.nice(5 * (2 - rank))


_running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Load]]] = []


def _load(job: Job) -> float:
    """Open the streams; returns the time at which the load begins. `_finish` carries it out."""
    loop = uvloop.new_event_loop()
    begin: asyncio.Future[float] = loop.create_future()
    task = loop.create_task(_streaming(job, begin))
    _running.append((loop, task))
    waiting: list[asyncio.Future[Any]] = [task, begin]
    loop.run_until_complete(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))
    return begin.result() if begin.done() else task.result().seconds


def _finish() -> Load:
    loop, task = _running.pop()
    try:
        return loop.run_until_complete(task)
    finally:
        loop.close()


async def _streaming(job: Job, began: asyncio.Future[float]) -> Load:
    load = Load(job.streams)
    async with AsyncExitStack() as exits:
        reads = await _open(exits, job)
        for read in reads:
            await read(0)
        start = time.time() + 0.2
        began.set_result(start)
        await asyncio.sleep(max(0.0, start - time.time()))
        clock = time.perf_counter()
        half, end = clock + job.seconds, clock + 2 * job.seconds
        cpu = cpu_seconds(job.pid)
        tasks = []
        for number, read in enumerate(reads):
            phase = (number % STEPS) / STEPS if job.way == "session in steps" else number / job.streams
            due = clock + phase / job.pace
            tasks.append(asyncio.create_task(_paced(read, due, 1 / job.pace, half, end, load)))
        await asyncio.sleep(half - time.perf_counter())
        load.seconds = time.perf_counter() - clock
        load.cpu = cpu_seconds(job.pid) - cpu
        await asyncio.gather(*tasks)
    return load


async def _open(exits: AsyncExitStack, job: Job) -> list[Callable[[int], Awaitable[None]]]:
    if job.way in ("session", "session in steps"):
        links = []
        for _ in range(-(-job.streams // STREAMS_PER_LINK)):
            links.append(await connect(job.url))
            exits.push_async_callback(links[-1].close)
        return [SessionStream(links[n % len(links)], job.work, n).read for n in range(job.streams)]
    reads: list[Callable[[int], Awaitable[None]]] = []
    for number in range(job.streams):
        http = Http(job.url)
        await http.open()
        exits.callback(http.close)
        reads.append(CallStream(http, job.work, number, full=job.way == "all in each call").read)
    return reads


async def _paced(
    read: Callable[[int], Awaitable[None]], due: float, step: float, half: float, end: float, load: Load
) -> None:
    """Only what is over in the first half counts."""
    position = 1
    while due < end:
        now = time.perf_counter()
        if now < due:
            await asyncio.sleep(due - now)
        elif now > due + step and now < half:
            load.late += 1
        if (began := time.perf_counter()) >= end:
            return
        await read(position)
        if (now := time.perf_counter()) < half:
            load.times.append(now - began)
        position += 1
        due += step


def _renders_from(url: str, begin: float, seconds: float) -> list[float]:
    return asyncio.run(_renders(url, begin, seconds))


async def _renders(url: str, begin: float, seconds: float) -> list[float]:
    """Small renders, one after the other, at most so many a second."""
    http = Http(url)
    await http.open()
    times = []
    await asyncio.sleep(max(0.0, begin - time.time()))
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await http.post("/v1/chat/completions/render", SMALL_RENDER)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, 1 / RENDERS_A_SECOND - times[-1]))
    http.close()
    return times
