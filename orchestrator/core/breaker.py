"""A member's breaker: closed, open for a cooldown after failures in a row, then one trial at a time.

HTTP errors count as well as transport errors. Whether an open breaker keeps a member out is decided by
selection, which never leaves a role without members. Times are seconds on any one clock.
"""

from __future__ import annotations


class Breaker:
    __slots__ = ("_cooldown", "_failures", "_open_until", "_threshold")

    def __init__(self, threshold: int, cooldown: float) -> None:
        self._threshold = threshold
        self._cooldown = cooldown
        self._failures = 0
        self._open_until: float | None = None

    def __repr__(self) -> str:
        return f"<Breaker failures={self._failures} open_until={self._open_until}>"

    def succeeded(self) -> None:
        self._failures = 0
        self._open_until = None

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= self._threshold:
            self._open_until = now + self._cooldown

    def is_open(self, now: float) -> bool:
        """After the cooldown the member is tried again; one more failure opens it at once."""
        return self._open_until is not None and now < self._open_until
