"""White space that a format puts before its text: dropped, or kept unless a marker follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from render_tier.core.body import Calls, Status


@dataclass(frozen=True)
class GapFormat:
    """``characters``: what the gap consists of. ``keep``: it is text unless a marker token of the state's
    ``on`` follows; then at most ``limit`` characters are a gap."""

    characters: str
    keep: bool = False
    limit: int = 256

    def open(self, marker: str, hold_limit: int) -> Gap:
        return Gap(self)

    def load(self, state: Any, hold_limit: int) -> Gap:
        gap = Gap(self)
        gap.raw = msgspec.convert(state, str)
        if len(gap.raw) > self.limit or gap.raw.strip(self.characters):
            raise ValueError("impossible gap")
        return gap


class Gap:
    """The body parser (`body.Body`) of `GapFormat`: it never holds a call. The marker before it is markup."""

    def __init__(self, fmt: GapFormat) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self.raw = ""
        self._format = fmt

    def feed(self, text: str, start: int, calls: Calls) -> int:
        fmt = self._format
        end = start
        while end < len(text) and text[end] in fmt.characters and not self._full(end - start):
            end += 1
        if fmt.keep:
            self.raw += text[start:end]
        if end < len(text):
            self._over()
        return end

    def _full(self, more: int) -> bool:
        return self._format.keep and len(self.raw) + more >= self._format.limit

    def _over(self) -> None:
        self.status = Status.FAILED if self._format.keep else Status.DONE

    def finish(self, calls: Calls) -> None:
        self._over()

    def close(self, calls: Calls) -> None:
        self.status = Status.DONE

    def dump(self) -> str:
        return self.raw
