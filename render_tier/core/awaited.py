"""A text that must come for what stands before it to mean anything: the first call in a block of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from render_tier.core.body import Calls, Status


@dataclass(frozen=True)
class AwaitedFormat:
    """``text``: what is waited for."""

    text: str

    def open(self, marker: str, hold_limit: int) -> Awaited:
        return Awaited(self.text, marker, hold_limit)

    def load(self, state: Any, hold_limit: int) -> Awaited:
        raw = msgspec.convert(state, str)
        if len(raw) > hold_limit:
            raise ValueError("more is held than may be")
        return Awaited(self.text, raw, hold_limit)


class Awaited:
    """The body parser (`body.Body`) of `AwaitedFormat`: done behind the text, and then everything before it
    is
    markup; failed, and then all is text, when the output ends or ``hold_limit`` characters have passed."""

    def __init__(self, text: str, raw: str, hold_limit: int) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self._text = text
        self._parts = [raw] if raw else []
        self._size = len(raw)
        self._hold_limit = hold_limit

    @property
    def raw(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def feed(self, text: str, start: int, calls: Calls) -> int:
        end = min(len(text), start + max(0, self._hold_limit - self._size))
        tail = self._tail()
        found = (tail + text[start:end]).find(self._text)
        if found >= 0:
            end = start + found + len(self._text) - len(tail)
            self.status = Status.DONE
        elif end < len(text):
            self.status = Status.FAILED
        self._parts.append(text[start:end])
        self._size += end - start
        return end

    def _tail(self) -> str:
        """The end of what was read: all that may be the beginning of the text, and less than all of it."""
        tail = ""
        for part in reversed(self._parts):
            tail = part + tail
            if len(tail) >= len(self._text):
                break
        return tail[-(len(self._text) - 1) :]

    def plain(self, text: str) -> str | None:
        return None

    def finish(self, calls: Calls) -> None:
        self.status = Status.FAILED

    close = finish

    def dump(self) -> str:
        return self.raw
