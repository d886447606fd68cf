"""Quantiles of the last so many values, for a look at what is going on now."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil


class Recent:
    """Keeps the last ``size`` values."""

    def __init__(self, size: int) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)

    def last(self, count: int) -> list[float]:
        """So many of them, or all where there are fewer, the oldest first."""
        return list(self._values)[-count:]

    def quantiles(self, *shares: float) -> list[float] | None:
        """For each share the least value that so many of the kept ones do not exceed; None of nothing."""
        return quantiles(sorted(self._values), *shares)


def quantiles(values: Sequence[float], *shares: float) -> list[float] | None:
    """``values`` are sorted, a share is above 0 and at most 1."""
    return [quantile(values, share) for share in shares] if values else None


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, of which there are some."""
    return values[ceil(share * len(values)) - 1]
