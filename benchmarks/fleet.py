"""Engines in simulated time: prefill and decode apart, or both on each engine.

Discrete events, no clock. A decode step takes ``step + step_per_sequence * n + step_per_context_token * t``
seconds for ``n`` sequences with ``t`` tokens together, and each gets a token at its end; who comes during a
step joins the next. A prompt takes ``prefill_overhead + uncached / prefill_tokens`` seconds of an engine.
Apart, prompts queue for the first free prefill engine, their KV then moves over a link, and decode generates
every token. Together, each step also computes up to ``chunk`` prompt tokens, which takes its time beside the
sequences' (chunked prefill), and the end of a prompt is its first token.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.core.capacity import Rates
from orchestrator.core.kv_size import KvSize
from orchestrator.core.workload import Asked


@dataclass(frozen=True, slots=True)
class Served:
    """One request, in seconds."""

    first: float
    per_token: float
    """Mean time between its tokens."""


@dataclass
class Run:
    since: float
    until: float
    """Steps are counted between these, when the fleet is neither filling nor emptying; requests always."""
    served: list[Served] = field(default_factory=list)
    prefill_busy: float = 0.0
    """Share of the time, of the mean prefill engine."""
    sequence_seconds: float = 0.0
    """Spent in decode, on all engines."""
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """Length of each step, and how many tokens came of it."""

    def sequences(self, engines: int) -> float:
        """In decode on the mean engine, on average over time."""
        return self.sequence_seconds / (self.until - self.since) / engines

    def first(self, share: float) -> float:
        return sorted(one.first for one in self.served)[int(share * len(self.served))]

    def gap(self, share: float) -> float:
        """What so many tokens do not exceed."""
        wanted = share * sum(count for _, count in self.gaps)
        for length, count in sorted(self.gaps):
            wanted -= count
            if wanted <= 0:
                return length
        return math.nan

    def within(self, first: float, per_token: float) -> float:
        """The share of requests that meet both."""
        good = sum(one.first <= first and one.per_token <= per_token for one in self.served)
        return good / len(self.served)


def arrivals(asked: Sequence[Asked], rate: float, count: int, seed: int) -> list[Asked]:
    """Poisson arrivals of requests drawn from ``asked``. The same seed at another rate: the same requests in
    the same order, closer together."""
    dice, now, drawn = random.Random(seed), 0.0, []
    for _ in range(count):
        now += dice.expovariate(1.0) / rate
        one = dice.choice(asked)
        drawn.append(Asked(one.prompt, one.output, one.cached, now))
    return drawn


@dataclass(slots=True)
class _Sequence:
    asked: Asked
    prompt_left: int = 0
    first: float = 0.0
    ends: int = 0
    """The engine's step with which it ends."""


class _Engine:
    """Steps over its sequences; ``chunk`` 0: prompts are somebody else's."""

    def __init__(self, rates: Rates, chunk: int, sequences: int, run: Run) -> None:
        self._rates, self._chunk, self._most, self._run = rates, chunk, sequences, run
        self._waiting: deque[_Sequence] = deque()
        self._running: list[tuple[int, int, _Sequence]] = []
        self._context = 0
        self._steps = 0
        self._done: list[_Sequence] = []
        """Whose prompt ends with this step."""
        self._fresh: list[_Sequence] = []
        """Which have not seen a step yet."""
        self._length = 0.0
        self.stepping = False

    @property
    def active(self) -> int:
        return len(self._waiting) + len(self._running)

    def add(self, sequence: _Sequence) -> None:
        sequence.prompt_left = sequence.asked.uncached if self._chunk else 0
        self._waiting.append(sequence)

    def begin(self) -> float | None:
        """Seconds of the next step; None: there is nothing to do."""
        prompts, budget = 0.0, self._chunk
        while self._waiting and len(self._running) + len(self._done) < self._most:
            sequence = self._waiting[0]
            if sequence.prompt_left:
                if not budget:
                    break
                if sequence.prompt_left == sequence.asked.uncached:
                    prompts += self._rates.prefill_overhead
                taken = min(budget, sequence.prompt_left)
                sequence.prompt_left -= taken
                budget -= taken
                prompts += taken / self._rates.prefill_tokens
                if sequence.prompt_left:
                    break
                self._done.append(self._waiting.popleft())
            else:
                self._run_it(self._waiting.popleft(), sequence.asked.output)
        self.stepping = bool(self._running) or prompts > 0
        if not self.stepping:
            return None
        rates, count = self._rates, len(self._running)
        self._length = prompts + rates.step + rates.step_per_sequence * count
        self._length += rates.step_per_context_token * self._context
        return self._length

    def _run_it(self, sequence: _Sequence, tokens: int) -> None:
        sequence.ends = self._steps + tokens
        self._context += sequence.asked.prompt
        heapq.heappush(self._running, (sequence.ends, id(sequence), sequence))
        self._fresh.append(sequence)

    def end(self, now: float) -> None:
        """A token for everybody."""
        count = len(self._running)
        self._steps += 1
        self._context += count
        if count and self._run.since <= now < self._run.until:
            self._run.sequence_seconds += self._length * count
            self._run.gaps.append((self._length, count))
        for sequence in self._fresh:
            sequence.first = sequence.first or now
        self._fresh.clear()
        while self._running and self._running[0][0] <= self._steps:
            sequence = heapq.heappop(self._running)[2]
            self._context -= sequence.asked.prompt + sequence.asked.output
            self._finish(sequence, now)
        for sequence in self._done:
            sequence.first = now
            if sequence.asked.output > 1:
                self._run_it(sequence, sequence.asked.output - 1)
                self._context += 1
            else:
                self._finish(sequence, now)
        self._done.clear()

    def _finish(self, sequence: _Sequence, now: float) -> None:
        assert sequence.asked.at is not None
        between = (now - sequence.first) / max(1, sequence.asked.output - 1)
        self._run.served.append(Served(sequence.first - sequence.asked.at, between))


def _run(asked: Sequence[Asked]) -> Run:
    """The first tenth of the arrivals fills the engines."""
    last = asked[-1].at
    assert last is not None
    return Run(last / 10, last)


Choice = Callable[[Sequence[_Engine]], _Engine]


def least_active(engines: Sequence[_Engine]) -> _Engine:
    return min(engines, key=lambda engine: engine.active)


def by_chance(seed: int) -> Choice:
    return random.Random(seed).choice


def _play(starts: list[tuple[float, _Sequence]], engines: list[_Engine], choose: Choice) -> None:
    """``starts``: when each sequence reaches the engines."""
    events: list[tuple[float, int, _Sequence | _Engine]] = [
        (at, number, sequence) for number, (at, sequence) in enumerate(starts)
    ]
    heapq.heapify(events)
    number = len(starts)
    while events:
        now, _, what = heapq.heappop(events)
        if isinstance(what, _Engine):
            what.end(now)
            engine = what
        else:
            engine = choose(engines)
            engine.add(what)
            if engine.stepping:
                continue
        length = engine.begin()
        if length is not None:
            number += 1
            heapq.heappush(events, (now + length, number, engine))


def apart(
    asked: Sequence[Asked],
    rates: Rates,
    *,
    prefills: int,
    decodes: int,
    sequences: int,
    kv: KvSize,
    link: float,
    choose: Choice = least_active,
) -> Run:
    """``asked``: with their times. ``link``: bytes a second from a prefill engine to a decode engine."""
    run = _run(asked)
    free = [0.0] * prefills
    starts, busy = [], 0.0
    for one in asked:
        assert one.at is not None
        service = rates.prefill_overhead + one.uncached / rates.prefill_tokens
        begun = max(one.at, heapq.heappop(free))
        heapq.heappush(free, begun + service)
        busy += service
        starts.append((begun + service + kv.of(one.prompt) / link, _Sequence(one)))
    _play(starts, [_Engine(rates, 0, sequences, run) for _ in range(decodes)], choose)
    run.prefill_busy = busy / run.until / prefills
    return run


def together(
    asked: Sequence[Asked],
    rates: Rates,
    *,
    engines: int,
    sequences: int,
    chunk: int,
    choose: Choice = least_active,
) -> Run:
    run = _run(asked)
    starts = [(one.at, _Sequence(one)) for one in asked if one.at is not None]
    _play(starts, [_Engine(rates, chunk, sequences, run) for _ in range(engines)], choose)
    return run
