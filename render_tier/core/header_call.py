"""A tool call written as a header with the function's name, a separator, and the arguments as JSON.

``name<separator>{...}``: DeepSeek V3 and V3.1, Kimi K2, Mistral. The call is committed when its separator
is read, since the name is known then. The arguments are passed on verbatim and end with the JSON value.
Once they turn out to be no JSON, only the family's own closing text ends them, and all before it is passed
on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from render_tier.core.body import Calls, Status
from render_tier.core.json_tracker import DONE, JsonTracker
from render_tier.core.markers import Markers

_HEADER: Final = 0
_LEAD: Final = 1  # white space before the arguments
_VALUE: Final = 2
_RAW: Final = 3  # arguments that are no JSON

_VISIBLE: Final = re.compile(r"[^ \t\n\r]")


@dataclass(frozen=True)
class HeaderCallFormat:
    """``separator``: a pattern for what ends the header; what it matches is not part of the arguments, and
    it may match the empty text before their first character. ``header``: a pattern that the whole header
    (white space at its ends removed) must match, with a group ``name`` and optionally a group ``id``.
    ``ends``: texts that end arguments which are no JSON. ``bare``: a header of this shape is a call without
    arguments where a marker follows it at once; empty: none is. ``cut``: what the output
    may end with that is the beginning of a header and not shown; any other is text. ``header_limit``:
    characters of a header before it is taken for text.
    """

    separator: str
    header: str = r"(?P<name>\S(?:.*\S)?)"
    ends: tuple[str, ...] = ()
    bare: str = ""
    cut: str = r"[^\s\"'{]*"
    header_limit: int = 1024

    @cached_property
    def find_separator(self) -> re.Pattern[str]:
        return re.compile(self.separator)

    @cached_property
    def read_header(self) -> re.Pattern[str]:
        return re.compile(self.header, re.DOTALL)

    @cached_property
    def fenced(self) -> bool:
        """Whether a newline after the arguments is a part of what ends them."""
        return any(end.startswith("\n") for end in self.ends)

    @cached_property
    def end_markers(self) -> Markers:
        return Markers(self.ends)

    def open(self, marker: str, hold_limit: int) -> HeaderCall:
        return HeaderCall(self, marker, hold_limit)

    def load(self, state: Any, hold_limit: int) -> HeaderCall:
        call = HeaderCall(self, "", hold_limit)
        call.restore(state)
        return call


class HeaderCall:
    """The body parser (`body.Body`) of `HeaderCallFormat`."""

    def __init__(self, fmt: HeaderCallFormat, marker: str, hold_limit: int) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self._format = fmt
        self._limit = min(hold_limit, fmt.header_limit)
        self._phase = _HEADER
        self.marker = marker
        self._header = ""
        self._tracker: JsonTracker | None = None
        self._empty = True  # no text of the arguments so far
        self._held = ""  # of arguments that are no JSON: may be the beginning of what ends them

    @property
    def raw(self) -> str:
        return "" if self.committed else self.marker + self._header

    def feed(self, text: str, start: int, calls: Calls) -> int:
        index, length = start, len(text)
        while index < length and self.status is Status.RUNNING:
            phase = self._phase
            if phase == _VALUE:
                index = self._value(text, index, calls)
            elif phase == _RAW:
                index = self._raw(text, index, calls)
            elif phase == _LEAD:
                found = _VISIBLE.search(text, index)
                index = length if found is None else found.start()
                if found is not None:
                    self._phase, self._tracker = _VALUE, JsonTracker(strict=True)
            else:
                index = self._read_header(text, index, calls)
        return index

    def plain(self, text: str) -> str | None:
        tracker = self._tracker
        if tracker is None or self._held or text[-1] == "\n":  # a newline may be the fence's
            return None
        return text if tracker.plain(text) else None

    def _read_header(self, text: str, index: int, calls: Calls) -> int:
        before = self._header
        room = self._limit + 1 - len(before)  # never more than the bound, so that any chunking hits it alike
        header = before + text[index : index + room]
        found = self._format.find_separator.search(header)
        if found is None:
            self._header = header
            if len(header) > self._limit:
                self.status = Status.FAILED
            return min(index + room, len(text))
        # A separator that only looks ahead is known when the last of what it looks at has come; what came
        # before that has been taken for the header already.
        again = before[found.end() :]
        self._header = header[: max(found.end(), len(before))]
        self.header_over(header[: found.start()], calls)
        used = index + max(found.end() - len(before), 0)
        if not again or self.status is not Status.RUNNING:
            return used
        return used + self.feed(again + text[used:], 0, calls) - len(again)

    def header_over(self, header: str, calls: Calls) -> None:
        """The separator has been read: commit the call, or set another ``status``."""
        named = self._format.read_header.fullmatch(header.strip())
        if named is None:
            self.status = Status.FAILED
            return
        groups = named.groupdict()
        self.commit(groups["name"], groups.get("id") or "", calls)

    def commit(self, name: str, written_id: str, calls: Calls) -> None:
        self.committed = True
        self.marker = self._header = ""
        self._phase = _LEAD
        calls.call_start(name, written_id)

    def _value(self, text: str, index: int, calls: Calls) -> int:
        tracker = self._tracker
        assert tracker is not None
        end = tracker.feed(text, index)
        stop = len(text) if end < 0 else end
        if stop > index:
            self._empty = False
            piece = text[index:stop]
            if self._held:
                piece, self._held = self._held + piece, ""
            if piece[-1] == "\n" and self._format.fenced and tracker.mode != DONE:
                piece, self._held = piece[:-1], "\n"
            if piece:
                calls.call_arguments(piece)
        if not tracker.valid:
            self._phase, self._tracker = _RAW, None
        elif end >= 0:
            self._end(calls, complete=True)
        return stop

    def _raw(self, text: str, index: int, calls: Calls) -> int:
        markers = self._format.end_markers
        held = len(self._held)
        text_here = self._held + text[index:]
        found = markers.search(text_here) if markers.search is not None else None
        if found is not None:
            self._held = ""
            missing = self._empty and not found.start()
            if missing or found.start():
                calls.call_arguments("{}" if missing else text_here[: found.start()])
            self._end(calls, complete=missing)
            return index + found.end() - held
        keep = markers.held(text_here)
        self._held = text_here[len(text_here) - keep :]
        if len(text_here) > keep:
            self._empty = False
            calls.call_arguments(text_here[: len(text_here) - keep])
        return len(text)

    def _end(self, calls: Calls, *, complete: bool) -> None:
        calls.call_end(complete)
        self.status = Status.DONE

    def finish(self, calls: Calls) -> None:
        if not self.committed:
            if re.fullmatch(self._format.cut, self._header.strip()):
                self.marker = self._header = ""
            self.status = Status.FAILED
            return
        if self._held:
            calls.call_arguments(self._held)
            self._held = ""
        tracker = self._tracker
        self._end(calls, complete=tracker is not None and tracker.ends_here)

    def close(self, calls: Calls) -> None:
        bare = self._format.bare
        if self._phase == _HEADER and bare and re.fullmatch(bare, self._header.strip()):
            self.header_over(self._header, calls)
        if self._phase == _LEAD:
            calls.call_arguments("{}")
            self._end(calls, complete=True)
        elif self.committed:
            self.finish(calls)
        else:
            self.status = Status.FAILED

    def dump(self) -> list[Any]:
        tracker = self._tracker.dump() if self._tracker is not None else None
        return [self._phase, self.marker, self._header, tracker, self._empty, self._held]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if (
            not _HEADER <= saved.phase <= _RAW
            or (saved.phase == _VALUE) != (saved.tracker is not None)
            or (saved.phase != _HEADER and (saved.marker or saved.header))
            or len(saved.header) > self._limit
            or len(saved.held) > self._format.end_markers.width
        ):
            raise ValueError("impossible call state")
        self._phase, self.marker, self._header = saved.phase, saved.marker, saved.header
        self._empty, self._held = saved.empty, saved.held
        self.committed = saved.phase != _HEADER
        self._tracker = JsonTracker.load(saved.tracker, strict=True) if saved.tracker is not None else None


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    phase: int
    marker: str
    header: str
    tracker: list[Any] | None
    empty: bool
    held: str
