"""What each hop of one request took. Marks are seconds on one clock, given by the caller.

With several runs the first one to reach a mark sets it: time to first token is the time until the client saw
something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class GapStats:
    """Time between arrivals of engine chunks within a run: count, sum and maximum, in seconds."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0

    def add(self, gap: float) -> None:
        self.count += 1
        self.total += gap
        self.longest = max(self.longest, gap)


@dataclass(slots=True)
class Timing:
    started: float
    rendered: float | None = None
    encode_started: float | None = None
    encoded: float | None = None
    prefill_started: float | None = None
    prefilled: float | None = None
    decode_started: float | None = None
    first_token: float | None = None
    output_complete: float | None = None
    """Of an answer that is no stream: all of it is derendered at once."""
    first_output: float | None = None
    finished: float | None = None
    gaps: GapStats = field(default_factory=GapStats)
    prefill_member: str | None = None
    decode_member: str | None = None

    def mark(self, name: str, now: float) -> None:
        """Set a mark unless it is set."""
        if getattr(self, name) is None:
            setattr(self, name, now)

    def restart_legs(self) -> None:
        """A failed attempt is repeated: its marks give way to the next attempt's."""
        self.prefill_started = self.prefilled = self.decode_started = self.first_token = None

    def seconds(self) -> dict[str, float | None]:
        """Spans. ``decode_first_token`` holds the KV transfer and the first decode step, which cannot be told
        apart from outside the engine; ``first_derender`` is from the first token to the first output for the
        client or, where the answer is whole, from its last token."""
        derendered_from = self.first_token if self.output_complete is None else self.output_complete
        return {
            "render": _span(self.started, self.rendered),
            "encode": _span(self.encode_started, self.encoded),
            "prefill": _span(self.prefill_started, self.prefilled),
            "decode_first_token": _span(self.decode_started, self.first_token),
            "first_derender": _span(derendered_from, self.first_output),
            "ttft": _span(self.started, self.first_output),
            "total": _span(self.started, self.finished),
        }

    def report(self, *, members: bool) -> dict[str, Any]:
        """Milliseconds, for the log or a client that asked. ``members``: with the addresses of those that
        served the request."""
        gaps = self.gaps
        mean = gaps.total / gaps.count if gaps.count else None
        spans = {f"{name}_ms": _ms(value) for name, value in self.seconds().items()}
        report: dict[str, Any] = spans | {
            "itl_ms": {
                "mean": _ms(mean),
                "max": _ms(gaps.longest if gaps.count else None),
                "count": gaps.count,
            },
        }
        if members:
            report |= {"prefill_member": self.prefill_member, "decode_member": self.decode_member}
        return report


def _span(begin: float | None, end: float | None) -> float | None:
    """None also where the marks are of different runs, one of which had to begin again."""
    return None if begin is None or end is None or end < begin else end - begin


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
