"""What clients ask for: lengths of prompts and answers, cached prompt tokens, and when they come.

A workload is a recorded trace, or is drawn from a distribution without chance: quantiles of lengths, paired
by a low-discrepancy sequence, so that the same description gives the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Final

GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Asked:
    """Tokens. ``cached``: of the prompt, found on the prefill engine. ``at``: seconds, None if not known."""

    prompt: int
    output: int
    cached: int = 0
    at: float | None = None

    @property
    def uncached(self) -> int:
        """What prefill computes: the last token at least."""
        return max(1, self.prompt - self.cached)


@dataclass(frozen=True)
class Workload:
    asked: Sequence[Asked]
    rate: float
    """Requests a second."""
    variation: float = 1.0
    """Squared coefficient of variation of the time between arrivals: 1 for Poisson, 0 for a clock, more for
    bursts."""


@dataclass(frozen=True)
class Lengths:
    """A log-normal distribution of token counts. ``spread``: the standard deviation of the logarithm."""

    mean: float
    spread: float = 0.0

    def quantile(self, share: float) -> int:
        middle = math.log(self.mean) - self.spread**2 / 2
        value = math.exp(middle + self.spread * NormalDist().inv_cdf(share)) if self.spread else self.mean
        return max(1, round(value))


def drawn(
    prompt: Lengths, output: Lengths, rate: float, *, cached_share: float = 0.0, count: int = 1000
) -> Workload:
    """``cached_share``: of each prompt, 0 to 1."""
    asked = []
    for number in range(count):
        tokens = prompt.quantile((number + 0.5) / count)
        answer = output.quantile((number + 1) * GOLDEN % 1 or 0.5)
        asked.append(Asked(tokens, answer, int(tokens * cached_share)))
    return Workload(asked, rate)


def recorded(asked: Sequence[Asked], rate: float | None = None) -> Workload:
    """Rate and variation from the times of arrival. ``rate``: play it at this one, with the same variation;
    needed where times are not known. Raises ``ValueError``."""
    if not asked:
        raise ValueError("the trace is empty")
    known = [one.at for one in asked if one.at is not None]
    if known and len(known) != len(asked):
        raise ValueError("some requests have a time and others do not")
    times = sorted(known)
    gaps = [after - before for before, after in pairwise(times)]
    total = sum(gaps)
    if total <= 0:
        if rate is None:
            raise ValueError("the trace has no times of arrival: name the rate")
        return Workload(asked, rate)
    mean = total / len(gaps)
    variation = sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2
    return Workload(asked, rate or 1 / mean, variation)
