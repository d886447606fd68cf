"""Several tool calls as a JSON array of call objects, or a single object where a format writes one bare.

The array as a whole is committed with its first call. Before that, what is no such array is text; afterwards
an element that is no call is left out, and what is no JSON ends the array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from render_tier.core.body import Calls, Status
from render_tier.core.json_call import JsonCall, JsonCallFormat
from render_tier.core.json_tracker import JsonTracker

_OPEN: Final = 0  # the array's bracket, or the bare object's brace
_FIRST: Final = 1  # an element or the closing bracket
_ELEMENT: Final = 2
_IN_ELEMENT: Final = 3
_AFTER: Final = 4  # a comma or the closing bracket
_SKIP: Final = 5  # inside an element that is no call
_BARE: Final = 6  # inside the bare object

_BLANKS: Final = " \t\n\r"
_BEFORE_LIMIT: Final = 1024
"""Marker and white space before the first element; with more it is text."""


@dataclass(frozen=True)
class JsonCallsFormat:
    """``call``: the elements. ``bare``: a single object may stand without the array. ``empty``: an array
    without elements is no text but no calls. ``lead``: what may stand before the array."""

    call: JsonCallFormat
    bare: bool = False
    empty: bool = True
    lead: str = ""

    def open(self, marker: str, hold_limit: int) -> JsonCalls:
        """``marker`` may end with the array's bracket."""
        return JsonCalls(self, marker, hold_limit, _FIRST if marker.endswith("[") else _OPEN)

    def load(self, state: Any, hold_limit: int) -> JsonCalls:
        calls = JsonCalls(self, "", hold_limit, _OPEN)
        calls.restore(state)
        return calls


class JsonCalls:
    """The body parser (`body.Body`) of `JsonCallsFormat`."""

    def __init__(self, fmt: JsonCallsFormat, marker: str, hold_limit: int, phase: int) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self._format = fmt
        self._hold_limit = hold_limit
        self._phase = phase
        self._before = marker  # what stands before the first element
        self._call: JsonCall | None = None
        self._tracker: JsonTracker | None = None

    @property
    def raw(self) -> str:
        if self.committed:
            return ""
        return self._before + (self._call.raw if self._call is not None else "")

    def feed(self, text: str, start: int, calls: Calls) -> int:
        index, length = start, len(text)
        while index < length and self.status is Status.RUNNING:
            if self._call is not None:
                index = self._feed_call(self._call, text, index, calls)
            elif self._tracker is not None:
                end = self._tracker.feed(text, index)
                index = length if end < 0 else end
                if end >= 0:
                    self._phase, self._tracker = _AFTER, None
            else:
                index = self._structure(text, index)
        return index

    def plain(self, text: str) -> str | None:
        call = self._call
        return call.plain(text) if call is not None and call.committed else None

    def _structure(self, text: str, index: int) -> int:
        """One character between elements. Returns the index after it, or before it when it ends the body."""
        character, phase = text[index], self._phase
        lead = self._format.lead
        led = (self._before.lstrip() + character) if lead and phase in (_OPEN, _FIRST) else ""
        if len(led) > 1 and lead.startswith(led):
            self._phase = _OPEN if led == lead else _FIRST
        elif character == "{" and (phase in (_FIRST, _ELEMENT) or (phase == _OPEN and self._format.bare)):
            self._phase = _BARE if phase == _OPEN else _IN_ELEMENT
            self._call = self._format.call.open("", self._hold_limit)
            return index
        elif character == "[" and phase == _OPEN:
            self._phase = _FIRST
        elif character == "," and phase == _AFTER:
            self._phase = _ELEMENT
        elif character == "]" and (phase in (_AFTER, _ELEMENT) or (phase == _FIRST and self._format.empty)):
            self.status = Status.DONE
        elif character not in _BLANKS:
            return self._stop(index)
        if not self.committed:
            self._before += character
            if len(self._before) > min(self._hold_limit, _BEFORE_LIMIT):
                return self._stop(index + 1)
        return index + 1

    def _stop(self, index: int) -> int:
        self.status = Status.DONE if self.committed else Status.FAILED
        return index

    def _feed_call(self, call: JsonCall, text: str, index: int, calls: Calls) -> int:
        index = call.feed(text, index, calls)
        if call.committed:
            self.committed, self._before = True, ""
        if call.status is Status.DONE:
            self._call = None
            if self._phase == _BARE:
                self.status = Status.DONE
            self._phase = _AFTER
        elif call.status is Status.FAILED:
            if not self.committed:
                self.status = Status.FAILED
                return index
            self._call = None
            self._phase, self._tracker = _SKIP, JsonTracker()
            self._tracker.feed(call.raw, 0)
        return index

    def finish(self, calls: Calls) -> None:
        if self._call is not None and self._call.committed:
            self._call.finish(calls)
        self._stop(0)

    close = finish

    def dump(self) -> list[Any]:
        call, tracker = self._call, self._tracker
        return [
            self._phase,
            self.committed,
            self._before,
            call.dump() if call is not None else None,
            tracker.dump() if tracker is not None else None,
        ]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if (
            not _OPEN <= saved.phase <= _BARE
            or (saved.phase in (_IN_ELEMENT, _BARE)) != (saved.call is not None)
            or (saved.phase == _SKIP) != (saved.tracker is not None)
            or (saved.committed and saved.before)
            or len(saved.before) > self._hold_limit
        ):
            raise ValueError("impossible state of an array of calls")
        self._phase, self.committed, self._before = saved.phase, saved.committed, saved.before
        self._call = self._format.call.load(saved.call, self._hold_limit) if saved.call is not None else None
        self._tracker = JsonTracker.load(saved.tracker) if saved.tracker is not None else None


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    phase: int
    committed: bool
    before: str
    call: list[Any] | None
    tracker: list[Any] | None
