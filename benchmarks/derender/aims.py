"""The figures that streaming derender is to reach, beside those measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.measure import print_table

GROWTH = 1.02
"""Exponent of CPU and of bytes."""
TIMES_LESS = 300
"""Of the peer's CPU for a chunk by a single call, at `AT_TOKENS` tokens."""
AT_TOKENS = 4096
SESSION_MICROSECONDS = 80
"""CPU a token in a session, everything included."""
STREAMS = 200
CHUNK_SECONDS = 0.020
"""p99 of a chunk with so many streams on one core."""
RENDER_MOVED = 1.20
"""p99 of small renders with those streams, against none."""


@dataclass
class Aims:
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def most(self, what: str, value: float, limit: float, form: str = "{:.2f}", note: str = "") -> None:
        self._add(what, form.format(value) + note, f"<= {form.format(limit)}", value <= limit)

    def least(self, what: str, value: float, limit: float, form: str = "{:.0f}") -> None:
        self._add(what, form.format(value), f">= {form.format(limit)}", value >= limit)

    def show(self) -> None:
        print_table("Aims", ("figure", "measured", "aim", ""), self.rows)

    def _add(self, what: str, value: str, aim: str, reached: bool) -> None:
        self.rows.append((what, value, aim, "reached" if reached else "MISSED"))
