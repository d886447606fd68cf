"""White space that a format puts before its answer: not part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from render_tier.core.body import Calls, Status


@dataclass(frozen=True)
class GapFormat:
    """``characters``: what the gap consists of."""

    characters: str

    def open(self, marker: str, hold_limit: int) -> Gap:
        return Gap(self)

    def load(self, state: Any, hold_limit: int) -> Gap:
        if state != []:
            raise ValueError("a gap has no state")
        return Gap(self)


class Gap:
    """The body parser (`body.Body`) of `GapFormat`: it holds no call and nothing back."""

    raw = ""

    def __init__(self, fmt: GapFormat) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self._characters = fmt.characters

    def feed(self, text: str, start: int, calls: Calls) -> int:
        end = start
        while end < len(text) and text[end] in self._characters:
            end += 1
        if end < len(text):
            self.status = Status.DONE
        return end

    def plain(self, text: str) -> str | None:
        return None

    def finish(self, calls: Calls) -> None:
        self.status = Status.DONE

    close = finish

    def dump(self) -> list[Any]:
        return []
