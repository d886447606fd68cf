"""Many streams at once at a steady pace: time per chunk, cores, and what happens to renders meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

import aiohttp

from benchmarks.derender.clients import CallStream, Http, SessionStream, connect
from benchmarks.derender.workload import Workload
from benchmarks.measure import cpu_seconds
from tests.support.processes import ServerProcess

Way = Literal["all in each call", "digest", "session"]
STREAMS_PER_LINK = 64
SMALL_RENDER = json.dumps(
    {"model": "qwen3", "messages": [{"role": "user", "content": "How cold is it?"}]}
).encode()


@dataclass
class Load:
    """``times``: seconds of each chunk. ``late``: chunks that began after their successor's time."""

    streams: int
    seconds: float = 0.0
    cpu: float = 0.0
    late: int = 0
    times: list[float] = field(default_factory=list)
    renders: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return len(self.times) / self.seconds

    def row(self, way: str) -> list[str]:
        return [
            way,
            str(self.streams),
            f"{self.rate:,.0f}",
            f"{quantile(self.times, 0.5) * 1e3:.2f}",
            f"{quantile(self.times, 0.99) * 1e3:.2f}",
            f"{self.cpu / len(self.times) * 1e6:.0f}",
            f"{self.cpu / self.seconds / self.rate * 1e3:.3f}",
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


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


async def run(
    server: ServerProcess,
    work: Workload,
    way: Way,
    streams: int,
    *,
    pace: float,
    seconds: float,
    renders: bool,
) -> Load:
    """``pace``: tokens a second of each stream. ``renders``: send small renders one after the other beside
    them, at most 20 a second."""
    load = Load(streams)
    async with AsyncExitStack() as exits:
        reads = await _streams(exits, server, work, way, streams)
        for read in reads:
            await read(0)
        cpu, began = cpu_seconds(server.pid), time.perf_counter()
        end = began + seconds
        tasks = [
            asyncio.create_task(_paced(read, began + number / streams / pace, 1 / pace, end, load))
            for number, read in enumerate(reads)
        ]
        if renders:
            tasks.append(asyncio.create_task(_renders(server, end, load)))
        await asyncio.gather(*tasks)
        load.seconds = time.perf_counter() - began
        load.cpu = cpu_seconds(server.pid) - cpu
    return load


async def render_alone(server: ServerProcess, seconds: float) -> list[float]:
    load = Load(0)
    await _renders(server, time.perf_counter() + seconds, load)
    return load.renders


async def _streams(
    exits: AsyncExitStack, server: ServerProcess, work: Workload, way: Way, streams: int
) -> list[Callable[[int], Awaitable[None]]]:
    reads: list[Callable[[int], Awaitable[None]]] = []
    if way == "session":
        session = await exits.enter_async_context(aiohttp.ClientSession())
        links = []
        for _ in range(-(-streams // STREAMS_PER_LINK)):
            links.append(await connect(session, server.url))
            exits.push_async_callback(links[-1].close)
        for number in range(streams):
            stream = SessionStream(links[number // STREAMS_PER_LINK], work, number)
            reads.append(stream.read)
        return reads
    for number in range(streams):
        http = Http(server.url)
        await http.open()
        exits.callback(http.close)
        reads.append(CallStream(http, work, number, full=way == "all in each call").read)
    return reads


async def _paced(
    read: Callable[[int], Awaitable[None]], due: float, step: float, end: float, load: Load
) -> None:
    position = 1
    while due < end:
        now = time.perf_counter()
        if now < due:
            await asyncio.sleep(due - now)
        elif now > due + step:
            load.late += 1
        if (began := time.perf_counter()) >= end:
            return
        await read(position)
        load.times.append(time.perf_counter() - began)
        position += 1
        due += step


async def _renders(server: ServerProcess, end: float, load: Load) -> None:
    http = Http(server.url)
    await http.open()
    while (began := time.perf_counter()) < end:
        await http.post("/v1/chat/completions/render", SMALL_RENDER)
        load.renders.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, 0.05 - (time.perf_counter() - began)))
    http.close()
