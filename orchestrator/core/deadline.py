"""One absolute deadline per request, and what of it a hop may use. Times are seconds on any one clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from render_tier.protocol.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Deadline:
    at: float

    def remaining(self, now: float) -> float:
        return max(0.0, self.at - now)

    def budget(self, now: float, limit: float) -> float:
        """What a hop with its own ``limit`` may take, starting now."""
        return min(limit, self.remaining(now))


def requested_timeout(header: str | None, body: object) -> float | None:
    """The client's wish in seconds from its header or its body field; the shorter when both are given.

    Raises ``BadRequest`` for anything but a finite positive number.
    """
    wishes: list[float] = []
    if header is not None:
        wishes.append(_seconds(header, "X-Request-Timeout"))
    if body is not None:
        if isinstance(body, bool) or not isinstance(body, int | float):
            raise BadRequest("timeout must be a positive number of seconds", param="timeout")
        wishes.append(_seconds(body, "timeout"))
    return min(wishes, default=None)


def _seconds(value: str | float, name: str) -> float:
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise BadRequest(f"{name} must be a positive number of seconds", param=name)
    return seconds


TIMEOUT_HEADER: Final = "X-Request-Timeout"
"""Seconds that the receiver may take: what a client sends us, and we send to each hop."""


def deadline(now: float, wish: float | None, limit: float) -> Deadline:
    """A client can shorten the configured ``limit``, never lengthen it."""
    return Deadline(now + (limit if wish is None else min(wish, limit)))
