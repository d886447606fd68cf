"""How many engines and cores a workload needs: formulas in docs/planning.md, built on `queueing`.

The answer is the smallest number of prefill engines that keeps their utilisation and the time to the first
token within the aims, and the smallest number of decode engines that keeps gaps, sequences and KV within
theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.kv_size import KvSize
from orchestrator.core.queueing import Crowd, Queue, crowd
from orchestrator.core.recent import quantile
from orchestrator.core.workload import Workload


class Unreachable(ValueError):
    """No number of engines meets the aims; the message says which one and why."""


@dataclass(frozen=True)
class Rates:
    """Measured of one engine and one render core; see docs/planning.md for how. Seconds."""

    prefill_tokens: float
    """Prompt tokens a second."""
    step: float
    """One decode step, whatever is in it."""
    step_per_sequence: float
    step_per_context_token: float = 0.0
    prefill_overhead: float = 0.0
    """Of each prompt."""
    render_per_request: float = 0.0
    render_per_token: float = 0.0
    """Of prompts."""
    derender_per_token: float = 0.0
    """Of answers."""


@dataclass(frozen=True)
class Aims:
    """``share`` of requests see a first token within ``first_token``, of tokens a gap within ``gap``."""

    first_token: float
    gap: float
    share: float = 0.99
    utilisation: float = 0.8
    """Of prefill engines and of render cores, at most."""
    transfer: float = 0.05
    """Of the longest prompts (that same share of them), over one link."""


@dataclass(frozen=True)
class Limits:
    """Of one decode engine."""

    sequences: int
    kv_bytes: float = math.inf
    engines: int = 10_000
    """Of a role, where the search ends."""


@dataclass(frozen=True)
class Prefill:
    engines: int
    queue: Queue
    first_token: float
    """What the share of requests does not exceed: render, wait, service and transfer of the longest prompts,
    and decode's first step."""


@dataclass(frozen=True)
class Decode:
    engines: int
    crowd: Crowd
    sequences: float
    """On one engine: what is not exceeded for the share of the time."""
    gap: float
    kv_bytes: float
    """The same sequences' KV, of mean length."""


@dataclass(frozen=True)
class Plan:
    kv_bytes_per_token: int
    kv_bytes_per_request: float
    """Mean."""
    fabric: float
    """Bytes a second, all links together, on average."""
    link: float
    """Bytes a second of one link that move the longest prompts in time."""
    prefill: Prefill
    decode: Decode
    render_cores: float
    """Busy ones, before the aim of utilisation."""
    render_cores_to_have: int

    @property
    def ratio(self) -> float:
        """Prefill engines to one decode engine."""
        return self.prefill.engines / self.decode.engines


class Planner:
    def __init__(self, workload: Workload, kv: KvSize, rates: Rates, aims: Aims, limits: Limits) -> None:
        self.workload, self.kv, self.rates, self.aims, self.limits = workload, kv, rates, aims, limits
        asked = workload.asked
        self._sizes = sorted(kv.of(one.prompt) for one in asked)
        self._services = sorted(rates.prefill_overhead + one.uncached / rates.prefill_tokens for one in asked)
        self._output = mean([one.output for one in asked])
        # A sequence of o tokens lives o steps and has prompt + o / 2 tokens of context meanwhile.
        lived = sum(one.output * (one.prompt + one.output / 2) for one in asked)
        self.context = lived / sum(one.output for one in asked)
        """Mean tokens of a sequence in decode."""

    def prefill(self, engines: int, first_step: float) -> Prefill:
        """``first_step``: seconds of decode until the first token is out."""
        service = mean(self._services)
        spread = mean([one**2 for one in self._services]) / service**2 - 1
        queue = Queue(engines, self.workload.rate, service, (self.workload.variation + spread) / 2)
        render = self.rates.render_per_request + self.rates.render_per_token * quantile(
            sorted(one.prompt for one in self.workload.asked), self.aims.share
        )
        longest = quantile(self._services, self.aims.share)
        first = render + queue.wait(self.aims.share) + longest + self.aims.transfer + first_step
        return Prefill(engines, queue, first)

    def decode(self, engines: int) -> Decode:
        load = self.workload.rate * self._output / engines
        slope = self.rates.step_per_sequence + self.rates.step_per_context_token * self.context
        found = crowd(load, self.rates.step, slope)
        sequences = found.sequences(self.aims.share)
        held = sequences * self.kv.of(round(self.context))
        return Decode(engines, found, sequences, found.gap(self.aims.share), held)

    def plan(self) -> Plan:
        """Raises ``Unreachable``."""
        decode = self._fewest_decode()
        prefill = self._fewest_prefill(decode.gap)
        per_request = mean(self._sizes)
        asked = self.workload.asked
        each = self.rates.render_per_request
        each += self.rates.render_per_token * mean([one.prompt for one in asked])
        each += self.rates.derender_per_token * self._output
        cores = self.workload.rate * each
        return Plan(
            kv_bytes_per_token=self.kv.bytes_per_token,
            kv_bytes_per_request=per_request,
            fabric=self.workload.rate * per_request,
            link=quantile(self._sizes, self.aims.share) / self.aims.transfer,
            prefill=prefill,
            decode=decode,
            render_cores=cores,
            render_cores_to_have=max(1, math.ceil(cores / self.aims.utilisation)),
        )

    def _fewest_decode(self) -> Decode:
        slope = self.rates.step_per_sequence + self.rates.step_per_context_token * self.context
        alone = self.rates.step + slope
        if alone > self.aims.gap:
            raise Unreachable(
                f"gaps of {ms(self.aims.gap)} ms: one sequence alone has {ms(alone)} ms between its tokens"
            )
        if self.kv.of(round(self.context)) > self.limits.kv_bytes:
            raise Unreachable("the KV of one sequence does not fit a decode engine")
        least = math.floor(self.workload.rate * self._output * slope) + 1
        for engines in range(least, self.limits.engines + 1):
            found = self.decode(engines)
            fits = found.sequences <= self.limits.sequences and found.kv_bytes <= self.limits.kv_bytes
            if found.gap <= self.aims.gap and fits:
                return found
        raise Unreachable(f"more than {self.limits.engines} decode engines")

    def _fewest_prefill(self, first_step: float) -> Prefill:
        least = self.workload.rate * mean(self._services) / self.aims.utilisation
        for engines in range(max(1, math.ceil(least)), self.limits.engines + 1):
            found = self.prefill(engines, first_step)
            if found.first_token <= self.aims.first_token:
                return found
            if found.queue.wait(self.aims.share) == 0:
                raise Unreachable(
                    f"a first token within {ms(self.aims.first_token)} ms: the longest prompts take"
                    f" {ms(found.first_token)} ms without any waiting"
                )
        raise Unreachable(f"more than {self.limits.engines} prefill engines")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.4g}"
