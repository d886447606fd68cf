"""Which calls may be made again, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from render_tier.client.errors import ClientError, Refused, Unreachable

PASSING = frozenset({408, 429, 502, 503, 504})
"""Statuses that say nothing about the request itself."""


@dataclass(frozen=True)
class Retries:
    """A call is made at most ``attempts`` times, with pauses that double from ``pause`` seconds to at most
    ``longest_pause``; a server's ``Retry-After`` is heeded up to the same bound.

    A call that is made again gives up the one before: its connection is closed, on which the orchestrator
    aborts, and nothing that was read of it is kept. So each call has one answer, or none.
    """

    attempts: int = 4
    pause: float = 0.25
    longest_pause: float = 20.0

    def pause_after(self, attempt: int, error: ClientError, headers: Mapping[str, str]) -> float | None:
        """Seconds until the next attempt; None when there is none. ``attempt`` counts from 1."""
        passing = isinstance(error, Unreachable) or (isinstance(error, Refused) and error.status in PASSING)
        if not passing or attempt >= self.attempts:
            return None
        asked = headers.get("retry-after", "")
        pause = float(asked) if asked.isdecimal() else self.pause * 2 ** (attempt - 1)
        return float(min(pause, self.longest_pause))
