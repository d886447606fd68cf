"""Render-tier replicas behind HAProxy, a load that rises and falls, and Kubernetes' autoscaler between them.

Real replicas (Qwen3's tokenizer, one render thread each), a real HAProxy whose servers are changed by its
runtime API as an ingress would, and benchmarks/hpa.py, fed with a signal: prompt tokens a second (the query
of docs/deploy.md, from the replicas' /metrics), CPU (as the HorizontalPodAutoscaler has it), or the requests
that wait for a thread (the chart's other query). What the other two would have wanted is shown beside it. A
second here is 15 in a cluster (sync period, scale-up period; the stabilisation window is 8). A stream is a
render and then one derender call for each token with the state of the call before, each through the balancer
to whichever replica: its text must be that of a single replica at rest. In the middle of the peak a replica
is killed, and another one is drained and ends, as in an update; both are replaced. These calls may be
repeated (docs/derender.md), so HAProxy does, and the client, for about three seconds; what fails then is
lost. The peak lasts until all of this has happened, two minutes more at most: a slow machine has a longer
one.

    python -m benchmarks.autoscale                               # about 4 minutes
    python -m benchmarks.autoscale --quick                       # about 1
    python -m benchmarks.autoscale --signal cpu --signal wait    # a day for each, in turn

Exits with 1 when a stream was lost or altered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import psutil

from benchmarks.derender.workload import PATH, Workload, workload
from benchmarks.hpa import Autoscaler, Behaviour
from benchmarks.measure import cpu_seconds, machine, print_table
from benchmarks.replicas import Balancer, Deployment, haproxy, idle, totals_of

PERIOD = 1.0
"""Seconds between two decisions: 15 in a cluster."""
BEHAVIOUR = Behaviour(least=1, most=4, down_window=8.0, up_period=PERIOD)
WINDOW = 3 * PERIOD
"""Over which the rate is taken."""
PROMPT, OUTPUT = 200, 12
CALM = 3
"""Decisions at the peak with enough replicas, before the next disturbance."""
LONGEST_PEAK = 120.0
INTERVAL = 0.1
"""Seconds between the tokens of a stream."""
BASE = 1.5
"""Streams a second."""
FILL = 0.7
"""Of one replica's target at the base load."""
ATTEMPTS = 5
SIGNALS = ("tokens", "cpu", "wait")
WAITING = 0.5
"""Requests that wait, for each replica: the chart's value."""
TRIAL_STREAMS = 12
"""From which the CPU time of one is taken."""


class Delta(msgspec.Struct):
    reasoning: str | None = None
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta


class Chunk(msgspec.Struct):
    choices: list[Choice]


class Notes(msgspec.Struct):
    context: str


class Reply(msgspec.Struct):
    chunk: Chunk
    stream_state: msgspec.Raw
    derender: Notes


_reply = msgspec.json.Decoder(Reply)


# --- clients


@dataclass
class Tally:
    expected: str = ""
    finished: int = 0
    lost: int = 0
    altered: int = 0
    repeated: int = 0
    """Calls that the client sent again."""
    complaints: list[str] = field(default_factory=list)


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, work: Workload, tally: Tally) -> None:
        self._session, self._url, self._work, self._tally = session, url, work, tally

    async def stream(self, number: int) -> None:
        try:
            text = await self.text(number)
        except ConnectionError as error:
            self._tally.lost += 1
            self._tally.complaints.append(str(error))
            return
        self._tally.finished += 1
        self._tally.altered += text != self._tally.expected

    async def text(self, number: int) -> str:
        """Raises ``ConnectionError`` when a call has failed for good."""
        await self._call(f"{PATH.removesuffix('/derender')}/render", msgspec.json.encode(self._work.chat))
        state, context, text = b"null", None, ""
        for position in range(OUTPUT):
            full = self._work.full_call(number, position, state)
            body = self._work.named_call(number, position, state, context) if context else full
            status, answer = await self._call(PATH, body)
            if status == 409:  # a replica that does not know the context
                status, answer = await self._call(PATH, full)
            reply = _reply.decode(answer)
            state, context = bytes(reply.stream_state), reply.derender.context
            delta = reply.chunk.choices[0].delta
            text += (delta.reasoning or "") + (delta.content or "")
            await asyncio.sleep(INTERVAL)
        return text

    async def _call(self, path: str, body: bytes) -> tuple[int, bytes]:
        failure = ""
        for attempt in range(ATTEMPTS):
            self._tally.repeated += attempt > 0
            try:
                headers = {"Content-Type": "application/json"}
                async with self._session.post(self._url + path, data=body, headers=headers) as reply:
                    answer = await reply.read()
                if reply.status in (200, 409):
                    return reply.status, answer
                failure = f"{reply.status} {answer[:200]!r}"
            except (aiohttp.ClientError, TimeoutError) as error:
                failure = repr(error)
            await asyncio.sleep(0.2 * (attempt + 1))
        raise ConnectionError(f"{path}: {failure}")


# --- the day


@dataclass
class Day:
    """Seconds of each part, at so many times the base load. The highest lasts until it is told to end."""

    parts: tuple[tuple[float, float], ...]
    load: float = 1.0
    over: bool = False
    peak_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def peak(self) -> float:
        return max(load for _, load in self.parts)

    async def go_by(self) -> None:
        for seconds, load in self.parts:
            self.load = load
            await asyncio.sleep(seconds)
            if load == self.peak:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.peak_over.wait(), LONGEST_PEAK)
        self.over = True


@dataclass
class Seen:
    replica_seconds: float = 0.0
    ideal_seconds: float = 0.0
    absorbed: float | None = None
    """Seconds from the step until as many replicas as it needs were ready."""
    rows: list[list[str]] = field(default_factory=list)


class Control:
    """Scrapes, decides and disturbs until the day is over."""

    def __init__(self, signal: str, day: Day, deployment: Deployment, session: aiohttp.ClientSession) -> None:
        self._signal = signal
        self._day, self._deployment, self._session = day, deployment, session
        self._scalers = {name: Autoscaler(BEHAVIOUR) for name in SIGNALS}
        self._total = dict.fromkeys(SIGNALS, 0.0)
        self._totals = [(0.0, dict(self._total))]
        """When, and how much by then."""
        self._began = self._last = time.monotonic()
        self._peak_at: float | None = None
        self._calm = 0
        """Decisions since as many replicas as are needed are ready, at the peak."""
        self._disturbances = ["killed one", "drained one"]
        self.seen = Seen()

    async def run(self, targets: dict[str, float], tokens: float) -> None:
        """``targets``: of one replica, by signal. ``tokens``: of one stream's prompt."""
        while not self._day.over:
            now = time.monotonic() - self._began
            rates = await self._rates(now)
            deployment, seen = self._deployment, self.seen
            present = len(deployment.replicas)
            wanted = {
                name: scaler.desired(now, present, rates[name], targets[name])
                for name, scaler in self._scalers.items()
            }
            deployment.want(wanted[self._signal])
            ideal = max(1, math.ceil(self._day.load * BASE * tokens / targets["tokens"]))
            passed, self._last = time.monotonic() - self._last, time.monotonic()
            seen.replica_seconds += passed * len(deployment.replicas)
            seen.ideal_seconds += passed * ideal
            event = await self._at_the_peak(now, ideal) if self._day.load == self._day.peak else ""
            shown = (f"{rates['tokens']:.0f}", f"{rates['cpu']:.2f}", f"{rates['wait']:.2f}")
            row = (f"{now:.0f}", f"{self._day.load:g}x", *shown, ideal, *wanted.values())
            seen.rows.append([*map(str, row), str(len(deployment.ready)), event])
            await asyncio.sleep(max(0.0, PERIOD - (time.monotonic() - self._began - now)))

    async def _rates(self, now: float) -> dict[str, float]:
        """A second, of all replicas that answer."""
        for replica in self._deployment.ready:
            with contextlib.suppress(aiohttp.ClientError, psutil.NoSuchProcess):
                totals = await totals_of(self._session, replica)
                for name, value in totals.items():
                    self._total[name] += value - replica.totals[name]
                replica.totals = totals
        self._totals = [one for one in self._totals if one[0] >= now - WINDOW] or self._totals[-1:]
        self._totals.append((now, dict(self._total)))
        (began, before), (ended, after) = self._totals[0], self._totals[-1]
        return {name: (after[name] - before[name]) / max(PERIOD, ended - began) for name in SIGNALS}

    async def _at_the_peak(self, now: float, ideal: int) -> str:
        """What was done, each time that all is well again."""
        if self._peak_at is None:
            self._peak_at = now
        self._calm = self._calm + 1 if len(self._deployment.ready) >= ideal else 0
        if self._calm and self.seen.absorbed is None:
            self.seen.absorbed = now - self._peak_at
        if self._calm < CALM:
            return ""
        self._calm = 0
        if not self._disturbances:
            self._day.peak_over.set()
            return ""
        event = self._disturbances.pop(0)
        victim = self._deployment.ready[0]
        if event == "killed one":
            await self._deployment.kill(victim)
        else:
            self._deployment.drain(victim)
        return event


async def play(signal: str, day: Day, balancer: Balancer, deployment: Deployment) -> int:
    """The exit code."""
    work, tally = workload(PROMPT, OUTPUT), Tally()
    deployment.want(1)
    await deployment.started()
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        [only] = deployment.ready
        alone = Client(session, only.process.url, work, tally)
        tally.expected = await alone.text(0)
        assert len(tally.expected) > OUTPUT
        tokens = (await totals_of(session, only))["tokens"]
        await idle(only)
        before = cpu_seconds(only.process.pid)
        trial = []
        for number in range(TRIAL_STREAMS):
            trial.append(asyncio.create_task(alone.text(number)))
            await asyncio.sleep(1 / BASE)
        await asyncio.gather(*trial)
        only.totals = await totals_of(session, only)
        cpu = (only.cpu - before) / TRIAL_STREAMS
        targets = {"tokens": BASE * tokens / FILL, "cpu": BASE * cpu / FILL, "wait": WAITING}
        client = Client(session, balancer.process.url, work, tally)
        control = Control(signal, day, deployment, session)
        passing = [asyncio.create_task(control.run(targets, tokens)), asyncio.create_task(day.go_by())]
        streams: list[asyncio.Task[None]] = []
        due = time.monotonic()
        while not day.over:
            streams.append(asyncio.create_task(client.stream(len(streams) + 1)))
            due += 1 / (BASE * day.load)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*streams, *passing)
    seen = control.seen
    await deployment.close()
    report(signal, day, tally, seen, len(streams), deployment.cpu)
    return 0 if tally.finished == len(streams) and not tally.altered else 1


def report(signal: str, day: Day, tally: Tally, seen: Seen, streams: int, cpu: float) -> None:
    wanted = [f"by {name}" for name in SIGNALS]
    print_table(
        f"Scaled by {signal}",
        ["s", "load", "tokens/s", "cores", "waiting", "ideal replicas", *wanted, "ready", ""],
        seen.rows[:: 1 if len(seen.rows) < 100 else 4],
    )
    absorbed = "never" if seen.absorbed is None else f"{seen.absorbed:.1f} s"
    print(
        f"\n{streams} streams of {OUTPUT + 1} calls: {tally.lost} lost, {tally.altered} altered;"
        f" {tally.repeated} calls sent again by the client"
        f"\na {day.peak:g}x step was met after {absorbed}: a decision every {PERIOD:g} s, then a start"
        f"\nreplica-seconds {seen.replica_seconds:.0f}, ideal {seen.ideal_seconds:.0f}"
        f" ({seen.replica_seconds / seen.ideal_seconds:.2f}x); CPU of all replicas {cpu:.0f} s"
    )
    for complaint in tally.complaints[:5]:
        print(complaint)


async def run(signal: str, day: Day, balancer: Balancer, directory: Path) -> int:
    deployment = Deployment(balancer, directory)
    try:
        return await play(signal, day, balancer, deployment)
    finally:
        await deployment.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a shorter day")
    parser.add_argument(
        "--signal",
        action="append",
        choices=SIGNALS,
        help="what replicas follow (tokens); repeat for a day each",
    )
    options = parser.parse_args()
    if options.quick:
        parts: tuple[tuple[float, float], ...] = ((6, 1), (6, 4), (6, 2), (12, 1))
    else:
        parts = ((20, 1), (15, 2), (40, 4), (20, 3), (30, 2), (40, 1))
    print(machine())
    code = 0
    for signal in options.signal or SIGNALS[:1]:
        with tempfile.TemporaryDirectory(prefix="autoscale-") as scratch, haproxy(Path(scratch)) as balancer:
            code |= asyncio.run(run(signal, Day(parts), balancer, Path(scratch)))
    print(f"load at the end: {machine().rpartition('load ')[2]}")
    sys.exit(code)


if __name__ == "__main__":
    main()
