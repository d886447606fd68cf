"""What the owner of a key may have under way and may begin in a minute."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit."""

    concurrent: int | None = None
    per_minute: int | None = None
    """On average; as many at once after a quiet minute."""


class Books(msgspec.Struct):
    """Of one key. Times are seconds of any clock."""

    active: dict[int, int] = msgspec.field(default_factory=dict)
    """Requests under way, by the process that has them."""
    left: float | None = None
    """How many may begin at once; None: nothing has begun yet."""
    at: float = 0.0
    """When that was so."""

    def begin(self, limits: Limits, process: int, now: float) -> float:
        """0: begun, and to be ended. Otherwise nothing has changed, and it is the seconds after which the
        rate allows it, or infinity while too many are under way."""
        if limits.concurrent is not None and sum(self.active.values()) >= limits.concurrent:
            return math.inf
        wait = 0.0 if limits.per_minute is None else self._take(limits.per_minute, now)
        if wait == 0:
            self.active[process] = self.active.get(process, 0) + 1
        return wait

    def end(self, process: int) -> None:
        left = self.active.pop(process, 0) - 1
        if left > 0:
            self.active[process] = left

    def _take(self, per_minute: int, now: float) -> float:
        most, per_second = float(per_minute), per_minute / 60
        left = most if self.left is None else self.left + max(0.0, now - self.at) * per_second
        self.left = min(most, left)
        self.at = max(self.at, now)
        if self.left >= 1 - 1e-9:
            self.left -= 1
            return 0.0
        return (1 - self.left) / per_second
