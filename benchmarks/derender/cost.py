"""What one stream costs by its length: CPU, wall, bytes, and how they grow.

Streams of all lengths take turns of `TURN` tokens all the time that the longest one takes, so that whatever
else the machine does is spread over all of them and does not look like growth.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.derender.clients import CallStream, CountingLink, Http, SessionStream, connect
from benchmarks.derender.workload import PATH, Workload
from benchmarks.measure import cpu_seconds, print_table, ratio
from tests.support.processes import ServerProcess

TURN = 256
SHORTER_EVERY = 4
"""Turns of the longest stream to one of each shorter one."""
FIELDS = ("cpu", "wall", "sent", "received")


@dataclass
class Cost:
    """Of a whole stream: seconds, and bytes of bodies. ``sampled``: integrated over sampled positions.
    ``quietest``: CPU seconds a token in the cheapest turn, when the machine did least besides."""

    cpu: float = 0.0
    wall: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    sampled: bool = False
    quietest: float = math.inf

    def share(self, count: int) -> Cost:
        values = {name: getattr(self, name) / count for name in FIELDS}
        return Cost(**values, quietest=self.quietest)


@dataclass
class _Lane:
    """Streams of one length, one after the other. ``places``: tokens read of the present one."""

    length: int
    total: Cost = field(default_factory=Cost)
    ended: int = 0
    place: int = 0
    read: Callable[[int], Awaitable[None]] | None = None
    close: Callable[[], None] = lambda: None


@dataclass
class Way:
    """``begin``: a new stream, as a function that reads the token at a position, and one that ends it.
    ``carried``: bytes up and down so far."""

    begin: Callable[[], tuple[Callable[[int], Awaitable[None]], Callable[[], None]]]
    carried: Callable[[], tuple[int, int]]


def by_calls(http: Http, work: Workload, *, full: bool) -> Way:
    numbers = iter(range(10**9))
    return Way(
        lambda: (CallStream(http, work, next(numbers), full=full).read, lambda: None),
        lambda: (http.sent, http.received),
    )


def by_session(link: CountingLink, work: Workload) -> Way:
    numbers = iter(range(10**9))

    def begin() -> tuple[Callable[[int], Awaitable[None]], Callable[[], None]]:
        stream = SessionStream(link, work, next(numbers))
        return stream.read, stream.close

    return Way(begin, lambda: (link.sent, link.received))


async def in_turns(server: ServerProcess, way: Way, lengths: Sequence[int]) -> list[tuple[int, Cost]]:
    """The mean cost of a stream of each length."""
    lanes = [_Lane(length) for length in lengths]
    for turn in range(max(1, max(lengths) // TURN)):
        for lane in lanes:
            if lane.length < max(lengths) and turn % SHORTER_EVERY:
                continue
            up, down = way.carried()
            cpu, wall = cpu_seconds(server.pid), time.perf_counter()
            for _token in range(TURN):
                if lane.read is None:
                    lane.read, lane.close = way.begin()
                await lane.read(lane.place)
                lane.place += 1
                if lane.place == lane.length:
                    lane.close()
                    lane.read, lane.place = None, 0
                    lane.ended += 1
            used = cpu_seconds(server.pid) - cpu
            lane.total.cpu += used
            lane.total.quietest = min(lane.total.quietest, used / TURN)
            lane.total.wall += time.perf_counter() - wall
            more_up, more_down = way.carried()
            lane.total.sent += more_up - up
            lane.total.received += more_down - down
    return [(lane.length, lane.total.share(lane.ended)) for lane in lanes]


async def measure(
    server: ServerProcess, work: Workload, lengths: Sequence[int], full_limit: int
) -> dict[str, list[tuple[int, Cost]]]:
    """Ours, three ways. ``full_limit``: longest stream that sends everything each time."""
    full = [length for length in lengths if length <= full_limit]
    http = Http(server.url)
    await http.open()
    costs = {}
    for name, some in (("all in each call", full), ("digest", lengths)):
        costs[name] = await _warm(server, by_calls(http, work, full=some is full), some)
    http.close()
    link = await connect(server.url)
    costs["session"] = await _warm(server, by_session(link, work), lengths)
    await link.close()
    return costs


async def _warm(server: ServerProcess, way: Way, lengths: Sequence[int]) -> list[tuple[int, Cost]]:
    await in_turns(server, way, [TURN])
    return await in_turns(server, way, lengths)


async def by_sampled_calls(
    server: ServerProcess, work: Workload, positions: Sequence[int], calls: int
) -> list[tuple[int, Cost]]:
    """Single calls of vLLM at some positions, with the state that a client would hold there. Where a call is
    long, ``calls`` of them say no more than a few."""
    http = Http(server.url)
    await http.open()
    await http.post(PATH, work.full_call(1, 0, b"null"))
    samples = []
    for position in positions:
        body = work.full_call(1, position, work.peer_state(position))
        http.sent = http.received = 0
        cpu, wall = cpu_seconds(server.pid), time.perf_counter()
        count = 0
        while count < calls and (count < 3 or time.perf_counter() - wall < 3.0):
            await http.post(PATH, body)
            count += 1
        used, passed = cpu_seconds(server.pid) - cpu, time.perf_counter() - wall
        cost = Cost(used / count, passed / count, http.sent / count, http.received / count, True)
        samples.append((position, cost))
    http.close()
    return samples


def integrated(samples: Sequence[tuple[int, Cost]], length: int) -> Cost:
    """The cost of a stream from that of single calls, by the trapezoid rule; beyond the last sample, as on
    the line through the last two."""
    points = [(0, samples[0][1]), *samples]
    total = Cost(sampled=True)
    (x0, a), (x1, b) = points[-2:]
    for name in FIELDS:
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


def exponent(costs: Sequence[tuple[int, Cost]], name: str) -> float:
    """Of growth: the slope of the line that fits the logarithms best. NaN for a single length."""
    points = [(math.log(length), math.log(getattr(cost, name))) for length, cost in costs]
    if len(points) < 2:
        return math.nan
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


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
                    "-" if cost.sampled else f"{cost.quietest * 1e6:.0f}",
                    f"{cost.wall:.2f}",
                    f"{cost.sent / 1e6:.2f} / {cost.received / 1e6:.2f}",
                    ratio(known.cpu, cost.cpu) if known else "-",
                ]
            )
        if len(costs) > 1:
            growth = [f"{exponent(costs, name):.3f}" for name in ("cpu", "sent", "received")]
            rows.append([f"{way}: exponents of CPU, bytes up, bytes down", "", *growth, "", "", ""])
    header = ["way", "tokens", "CPU s", "µs a token", "quietest", "wall s", "MB up / down", "vLLM's CPU"]
    print_table(title, header, rows)
