"""What one stream costs by its length: CPU, wall, bytes, and how they grow."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import aiohttp

from benchmarks.derender.clients import CallStream, Http, SessionStream, connect
from benchmarks.derender.workload import PATH, Workload
from benchmarks.measure import cpu_seconds, print_table, ratio
from tests.support.processes import ServerProcess


@dataclass
class Cost:
    """Of a whole stream: seconds, and bytes of bodies. ``sampled``: integrated over sampled positions."""

    cpu: float
    wall: float
    sent: float
    received: float
    sampled: bool = False


async def by_calls(server: ServerProcess, work: Workload, length: int, *, full: bool) -> Cost:
    http = Http(server.url)
    await http.open()
    stream = CallStream(http, work, 1, full=full)
    cpu, wall = cpu_seconds(server.pid), time.perf_counter()
    for position in range(length):
        await stream.read(position)
    cost = Cost(cpu_seconds(server.pid) - cpu, time.perf_counter() - wall, http.sent, http.received)
    http.close()
    return cost


async def by_session(server: ServerProcess, work: Workload, length: int) -> Cost:
    async with aiohttp.ClientSession() as session:
        link = await connect(session, server.url)
        stream = SessionStream(link, work, 1)
        cpu, wall = cpu_seconds(server.pid), time.perf_counter()
        for position in range(length):
            await stream.read(position)
        cost = Cost(cpu_seconds(server.pid) - cpu, time.perf_counter() - wall, link.sent, link.received)
        await link.close()
    return cost


async def by_sampled_calls(
    server: ServerProcess, work: Workload, positions: Sequence[int], calls: int
) -> list[tuple[int, Cost]]:
    """Single calls of vLLM at some positions, with the state that a client would hold there."""
    http = Http(server.url)
    await http.open()
    await http.post(PATH, work.full_call(1, 0, b"null"))
    samples = []
    for position in positions:
        body = work.full_call(1, position, work.peer_state(position))
        count = calls if position < 2000 else max(1, calls // 3)
        http.sent = http.received = 0
        cpu, wall = cpu_seconds(server.pid), time.perf_counter()
        for _ in range(count):
            await http.post(PATH, body)
        used, passed = cpu_seconds(server.pid) - cpu, time.perf_counter() - wall
        cost = Cost(used / count, passed / count, http.sent / count, http.received / count, True)
        samples.append((position, cost))
    http.close()
    return samples


def integrated(samples: Sequence[tuple[int, Cost]], length: int) -> Cost:
    """The cost of a stream from that of single calls, by the trapezoid rule; beyond the last sample, as on
    the line through the last two."""
    points = [(0, samples[0][1]), *samples]
    total = Cost(0.0, 0.0, 0.0, 0.0, True)
    (x0, a), (x1, b) = points[-2:]
    for name in ("cpu", "wall", "sent", "received"):
        values = [(x, float(getattr(cost, name))) for x, cost in points]
        slope = (getattr(b, name) - getattr(a, name)) / max(1, x1 - x0)
        values.append((max(length, x1 + 1), getattr(b, name) + slope * (max(length, x1 + 1) - x1)))
        area = 0.0
        for (left, low), (right, high) in pairwise(values):
            end = min(right, length)
            if end > left:
                at_end = low + (high - low) * (end - left) / (right - left)
                area += (low + at_end) / 2 * (end - left)
        setattr(total, name, area)
    return total


def exponent(costs: Sequence[tuple[int, Cost]], name: str) -> str:
    """Of growth between the two longest streams."""
    if len(costs) < 2:
        return "-"
    (n0, first), (n1, second) = costs[-2:]
    return f"{math.log(getattr(second, name) / getattr(first, name)) / math.log(n1 / n0):.2f}"


def report(title: str, ways: dict[str, list[tuple[int, Cost]]], peer: list[tuple[int, Cost]]) -> None:
    theirs = dict(peer)
    rows = []
    for way, costs in {**ways, "vLLM": peer}.items():
        for length, cost in costs:
            known = theirs.get(length) if way != "vLLM" else None
            rows.append(
                [
                    way + (" (sampled)" if cost.sampled else ""),
                    f"{length:,}",
                    f"{cost.cpu:.3f}",
                    f"{cost.cpu / length * 1e6:.0f}",
                    f"{cost.wall:.2f}",
                    f"{cost.sent / 1e6:.2f} / {cost.received / 1e6:.2f}",
                    ratio(known.cpu, cost.cpu) if known else "-",
                ]
            )
        if costs:
            growth = [exponent(costs, name) for name in ("cpu", "sent", "received")]
            rows.append([f"{way}: exponents of CPU, bytes up, bytes down", "", *growth, "", ""])
    header = ["way", "tokens", "CPU s", "µs a token", "wall s", "MB up / down", "vLLM's CPU"]
    print_table(title, header, rows)


async def measure(
    server: ServerProcess, work: Workload, lengths: Sequence[int], full_limit: int
) -> dict[str, list[tuple[int, Cost]]]:
    """Ours, three ways. ``full_limit``: longest stream that sends everything each time."""
    await by_session(server, work, 64)
    await by_calls(server, work, 64, full=False)
    ways: dict[str, list[tuple[int, Cost]]] = {"all in each call": [], "digest": [], "session": []}
    for length in lengths:
        if length <= full_limit:
            ways["all in each call"].append((length, await by_calls(server, work, length, full=True)))
        ways["digest"].append((length, await by_calls(server, work, length, full=False)))
        ways["session"].append((length, await by_session(server, work, length)))
        await asyncio.sleep(0)
    return ways
