"""A body that is one of two, told apart by its first visible character."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from render_tier.core.body import Body, BodyFormat, Calls, Status

_BLANKS: Final = " \t\n\r"
_BLANK_LIMIT: Final = 64
"""White space before the first character beyond which the text is not looked at further."""


@dataclass(frozen=True)
class ChoiceFormat:
    """``starts``: the first visible characters of ``body``; with any other it is ``otherwise``, or text."""

    starts: str
    body: BodyFormat
    otherwise: BodyFormat | None = None

    def open(self, marker: str, hold_limit: int) -> Choice:
        return Choice(self, marker, hold_limit)

    def load(self, state: Any, hold_limit: int) -> Choice:
        choice = Choice(self, "", hold_limit)
        choice.restore(state)
        return choice


class Choice:
    """The body parser (`body.Body`) of `ChoiceFormat`."""

    def __init__(self, fmt: ChoiceFormat, marker: str, hold_limit: int) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self._format = fmt
        self._hold_limit = hold_limit
        self._before = marker
        self._blanks = 0
        self._chosen = 0  # 1: `body`, 2: `otherwise`
        self._body: Body | None = None

    @property
    def raw(self) -> str:
        return self._before if self._body is None else self._body.raw

    def feed(self, text: str, start: int, calls: Calls) -> int:
        index = start
        while self._body is None:
            if index == len(text):
                return index
            character = text[index]
            if character in _BLANKS and self._blanks < _BLANK_LIMIT:
                self._before += character
                self._blanks += 1
                index += 1
            else:
                self._choose(1 if character in self._format.starts else 2)
                if self._body is None:
                    self.status = Status.FAILED
                    return index
        index = self._body.feed(text, index, calls)
        self.status, self.committed = self._body.status, self._body.committed
        return index

    def plain(self, text: str) -> str | None:
        return self._body.plain(text) if self._body is not None else None

    def _choose(self, chosen: int) -> None:
        self._chosen = chosen
        fmt = self._format.body if chosen == 1 else self._format.otherwise
        self._body = fmt.open(self._before, self._hold_limit) if fmt is not None else None

    def finish(self, calls: Calls) -> None:
        if self._body is None:
            if self._format.otherwise is not None:  # the marker alone: of a call that is cut
                self._before = ""
            self.status = Status.FAILED
        else:
            self._body.finish(calls)
            self.status = self._body.status

    def close(self, calls: Calls) -> None:
        if self._body is None:
            self.status = Status.FAILED
        else:
            self._body.close(calls)
            self.status = self._body.status

    def dump(self) -> list[Any]:
        if self._body is None:
            return [0, self._before, self._blanks, None]
        return [self._chosen, "", 0, self._body.dump()]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if not 0 <= saved.chosen <= 2 or not 0 <= saved.blanks <= _BLANK_LIMIT:
            raise ValueError("impossible choice")
        self._chosen, self._before, self._blanks = saved.chosen, saved.before, saved.blanks
        if saved.chosen:
            fmt = self._format.body if saved.chosen == 1 else self._format.otherwise
            if fmt is None:
                raise ValueError("impossible choice")
            self._body = fmt.load(saved.body, self._hold_limit)
            self.committed = self._body.committed


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    chosen: int
    before: str
    blanks: int
    body: Any
