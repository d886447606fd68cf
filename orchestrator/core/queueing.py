"""Waiting and crowding in closed form: prefill as a queue, decode as a shared processor.

Prefill: first come, first served, at ``servers`` engines. Erlang's C for the chance to wait, Allen and
Cunneen's correction for variable arrivals and service, an exponential tail.

Decode: all sequences of an engine take each step together, and a step takes ``base + slope * n`` seconds with
``n`` of them, so each advances at ``1 / (base + slope * n)`` tokens a second. That is a processor-sharing
queue whose speed depends on its state; with Poisson arrivals its ``n`` has probabilities proportional to the
product of ``load * (base + slope * i) / i`` whatever the distribution of lengths (insensitivity). ``load``:
tokens a second that arrive. A token sees the others as if it was not there, so its step is that of ``n + 1``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Queue:
    servers: int
    rate: float
    """Arrivals a second."""
    service: float
    """Mean seconds of one."""
    variation: float
    """Mean of the squared coefficients of variation of arrivals and of service."""

    @property
    def utilisation(self) -> float:
        return self.rate * self.service / self.servers

    @property
    def waits(self) -> float:
        """The chance that an arrival waits at all (Erlang's C); 1 when overloaded."""
        if self.utilisation >= 1:
            return 1.0
        load, blocked = self.rate * self.service, 1.0
        for number in range(1, self.servers + 1):
            blocked = load * blocked / (number + load * blocked)
        return blocked / (1 - self.utilisation * (1 - blocked))

    @property
    def mean_wait(self) -> float:
        if self.utilisation >= 1:
            return math.inf
        return self.waits * self.variation * self.service / (self.servers * (1 - self.utilisation))

    def wait(self, share: float) -> float:
        """What so many arrivals do not exceed, in seconds."""
        if self.utilisation >= 1:
            return math.inf
        chance = self.waits
        if 1 - chance >= share:
            return 0.0
        return self.mean_wait / chance * math.log(chance / (1 - share))


@dataclass(frozen=True)
class Crowd:
    """How many sequences are in decode on one engine."""

    base: float
    slope: float
    probabilities: Sequence[float]
    """Of 0, 1, 2, ... sequences; empty when more arrives than can be done."""

    @property
    def stable(self) -> bool:
        return bool(self.probabilities)

    @property
    def mean(self) -> float:
        if not self.stable:
            return math.inf
        return sum(number * chance for number, chance in enumerate(self.probabilities))

    def sequences(self, share: float) -> float:
        """What is not exceeded for that share of the time."""
        total = 0.0
        for number, chance in enumerate(self.probabilities):
            total += chance
            if total >= share:
                return number
        return math.inf if not self.stable else len(self.probabilities) - 1

    def gap(self, share: float) -> float:
        """Seconds between two tokens that so many tokens do not exceed."""
        return self.base + self.slope * (self.sequences(share) + 1)

    @property
    def mean_gap(self) -> float:
        return self.base + self.slope * (self.mean + 1)


def crowd(load: float, base: float, slope: float, *, most: int = 100_000, negligible: float = 1e-9) -> Crowd:
    """``load``: tokens a second. ``most``: sequences, beyond which it counts as more than can be done."""
    weights, total = [1.0], 1.0
    if load * slope < 1:
        for number in range(1, most):
            weight = weights[-1] * load * (base + slope * number) / number
            weights.append(weight)
            total += weight
            if weight < negligible * total and weight < weights[-2]:
                return Crowd(base, slope, [one / total for one in weights])
            if total > 1e200:
                weights, total = [one / total for one in weights], 1.0
    return Crowd(base, slope, ())
