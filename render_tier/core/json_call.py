"""A tool call written as a JSON object with a name and its arguments, in either order.

The arguments are passed on verbatim as they come; nothing is decoded and encoded again, so numbers and
escapes stay as the model wrote them. The call is *committed*, and its name sent, once the name is known and
the arguments look like JSON (`JsonTracker.settled`). Until then the text is held back, because an object
that is no call is ordinary text. When the arguments come first they are held back until the name is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from render_tier.core.body import Calls, Status
from render_tier.core.json_tracker import JsonTracker

# Phases: what is expected next.
_OPEN: Final = 0  # the object's brace
_FIRST_KEY: Final = 1  # a key or the closing brace
_KEY: Final = 2
_IN_KEY: Final = 3
_COLON: Final = 4
_VALUE: Final = 5
_NAME: Final = 6  # inside the name's string
_ARGUMENTS: Final = 7
_OTHER: Final = 8  # inside the value of another key
_AFTER: Final = 9  # a comma or the closing brace

_BLANKS: Final = " \t\n\r"
_KEY_LIMIT: Final = 64
"""Longest key that is looked at; a longer one is none of those that matter."""


@dataclass(frozen=True)
class JsonCallFormat:
    """``name_key`` and ``arguments_keys``: where the object keeps the function's name and arguments. An empty
    ``name_key``: the object's only key is the name and its value the arguments.

    ``first_keys``: the keys with which a call may begin, for formats without a marker of their own, so that
    another object is known for text at once; empty: any. ``optional``: without arguments it is a call too.
    """

    name_key: str
    arguments_keys: tuple[str, ...]
    first_keys: frozenset[str] = frozenset()
    optional: bool = False

    def open(self, marker: str, hold_limit: int) -> JsonCall:
        """``marker`` may end with the object's brace."""
        call = JsonCall(self, hold_limit)
        call.hold(marker)
        if marker.endswith("{"):
            call.brace_read()
        return call

    def load(self, state: Any, hold_limit: int) -> JsonCall:
        call = JsonCall(self, hold_limit)
        call.restore(state)
        return call


class JsonCall:
    """The body parser (`body.Body`) of `JsonCallFormat`."""

    def __init__(self, fmt: JsonCallFormat, hold_limit: int) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self._format = fmt
        self._hold_limit = hold_limit
        self._phase = _OPEN
        self._key = ""  # the key being read or whose value is being read; raw JSON text
        self._first = True  # no key's value has begun
        self._escaped = False
        self._name: str | None = None
        self._name_start = 0  # where the name's text starts in the held text
        self._arguments = -1  # where the arguments start in the held text; -1: not seen
        self._arguments_end = -1
        self._ended = False  # the end of the call has been reported
        self._tracker: JsonTracker | None = None
        self._parts: list[str] = []
        self._held = 0  # characters in _parts

    @property
    def raw(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def hold(self, text: str) -> None:
        self._parts.append(text)
        self._held += len(text)

    def brace_read(self) -> None:
        self._phase = _FIRST_KEY

    def feed(self, text: str, start: int, calls: Calls) -> int:
        index = start
        length = len(text)
        while index < length and self.status is Status.RUNNING:
            if self.committed:
                index = self._step(text, index, calls)
                continue
            # Never more than the bound in one step, so that it is hit at the same character in any chunking.
            room = self._hold_limit + 1 - self._held
            window = text if length - index <= room else text[: index + room]
            before = index
            index = self._step(window, index, calls)
            if index > before and not self.committed:
                self.hold(text[before:index])
                if self._ready():
                    self._commit(calls)
                elif self._held > self._hold_limit:
                    self.status = Status.FAILED
        return index

    def plain(self, text: str) -> str | None:
        tracker = self._tracker
        return text if tracker is not None and self._phase == _ARGUMENTS and tracker.plain(text) else None

    def finish(self, calls: Calls) -> None:
        if not self.committed:
            self.status = Status.FAILED
            return
        self._end(calls, complete=False)
        self.status = Status.DONE

    close = finish

    def _end(self, calls: Calls, *, complete: bool) -> None:
        if not self._ended:
            self._ended = True
            calls.call_end(complete)

    def _ready(self) -> bool:
        if self._name is None or self._arguments < 0:
            return False
        if self._arguments_end >= 0:
            return True
        return self._tracker is not None and self._phase == _ARGUMENTS and self._tracker.settled

    def _commit(self, calls: Calls) -> None:
        assert self._name is not None
        raw = self.raw
        self.committed = True
        self._parts, self._held = [], 0
        calls.call_start(self._name)
        complete = self._arguments_end >= 0
        calls.call_arguments(raw[self._arguments : self._arguments_end if complete else len(raw)])
        if complete:
            self._end(calls, complete=True)
        self._name, self._name_start, self._arguments, self._arguments_end = None, 0, -1, -1

    def _fail(self, calls: Calls) -> None:
        """The text is no call, or a committed call's object is damaged after its arguments."""
        if self.committed:
            self._end(calls, complete=False)
            self.status = Status.DONE
        else:
            self.status = Status.FAILED

    def _step(self, text: str, index: int, calls: Calls) -> int:
        """Read as much as belongs to one phase; at least one character unless the status changes."""
        phase = self._phase
        if phase == _ARGUMENTS:
            return self._step_arguments(text, index, calls)
        if phase == _OTHER:
            return self._step_other(text, index, calls)
        if phase in (_IN_KEY, _NAME):
            return self._step_string(text, index, calls)
        character = text[index]
        if character in _BLANKS:
            return index + 1
        if phase == _VALUE:
            return self._step_value(character, index, calls)
        if character == '"' and phase in (_FIRST_KEY, _KEY):
            self._phase, self._key = _IN_KEY, ""
        elif phase == _OPEN and character == "{":
            self._phase = _FIRST_KEY
        elif phase == _COLON and character == ":":
            self._phase = _VALUE
            if not self._format.name_key and not self.committed:
                self._name_is_key(calls)
        elif phase == _AFTER and character == ",":
            self._phase = _KEY
        elif character == "}" and phase in (_FIRST_KEY, _AFTER) and self.committed:
            self.status = Status.DONE
        elif character == "}" and phase == _AFTER and self._format.optional and self._name is not None:
            self._commit_without_arguments(calls)
        else:
            # Also the closing brace of an object without name or arguments.
            self._fail(calls)
            return index
        return index + 1

    def _name_is_key(self, calls: Calls) -> None:
        name = _decode_string(f'"{self._key}"') if len(self._key) <= _KEY_LIMIT else None
        if name:
            self._name = name
        else:
            self._fail(calls)

    def _commit_without_arguments(self, calls: Calls) -> None:
        assert self._name is not None
        self.committed = True
        self._parts, self._held = [], 0
        calls.call_start(self._name)
        calls.call_arguments("{}")
        self._end(calls, complete=True)
        self.status = Status.DONE

    def _step_string(self, text: str, index: int, calls: Calls) -> int:
        """Inside a key or the name. The name's text is in the held text already."""
        start = index
        while index < len(text):
            character = text[index]
            index += 1
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                if self._phase == _IN_KEY:
                    self._key = (self._key + text[start : index - 1])[: _KEY_LIMIT + 1]
                    self._phase = _COLON
                else:
                    raw = (self.raw + text[start:index])[self._name_start :]
                    self._name = _decode_string(raw)
                    if self._name is None:
                        self._fail(calls)
                    self._phase = _AFTER
                return index
        if self._phase == _IN_KEY:
            self._key = (self._key + text[start:])[: _KEY_LIMIT + 1]
        return index

    def _step_value(self, character: str, index: int, calls: Calls) -> int:
        """The first character of a key's value."""
        key = self._key
        first, self._first = self._first, False
        if first and self._format.first_keys and key not in self._format.first_keys:
            self._fail(calls)
            return index
        if key == self._format.name_key and not self.committed:
            if character != '"':
                self._fail(calls)
                return index
            self._phase, self._name, self._name_start = _NAME, None, self._held
            return index + 1
        self._tracker = JsonTracker()
        is_arguments = key in self._format.arguments_keys or not self._format.name_key
        if is_arguments and not self.committed:
            self._phase, self._arguments, self._arguments_end = _ARGUMENTS, self._held, -1
        else:
            self._phase = _OTHER
        return index

    def _step_arguments(self, text: str, index: int, calls: Calls) -> int:
        tracker = self._tracker
        assert tracker is not None
        if self.committed:
            end = tracker.feed(text, index)
            stop = len(text) if end < 0 else end
            if stop > index:
                calls.call_arguments(text[index:stop])
            if end >= 0:
                self._arguments_over(calls, tracker)
            return stop
        # One character at a time until the call is committed: that is where names go out.
        end = tracker.feed(text[index], 0)
        if not tracker.valid:
            self._fail(calls)
            return index
        if end == 0:  # a number or word ended before this character
            self._arguments_end, self._phase, self._tracker = self._held, _AFTER, None
            return index
        if end == 1:
            self._arguments_end, self._phase, self._tracker = self._held + 1, _AFTER, None
        return index + 1

    def _arguments_over(self, calls: Calls, tracker: JsonTracker) -> None:
        self._end(calls, complete=tracker.valid)
        self._phase, self._tracker = _AFTER, None
        if not tracker.valid:
            self.status = Status.DONE  # what follows the value of a damaged object is not worth reading

    def _step_other(self, text: str, index: int, calls: Calls) -> int:
        tracker = self._tracker
        assert tracker is not None
        end = tracker.feed(text[index], 0)  # singly: an error is found at the same character in any chunking
        if not tracker.valid:
            self._fail(calls)
            return index
        if end >= 0:
            self._phase, self._tracker = _AFTER, None
        return index + (end != 0)

    def dump(self) -> list[Any]:
        tracker = self._tracker.dump() if self._tracker is not None else None
        return [
            self._phase,
            self.committed,
            self._key,
            self._first,
            self._escaped,
            self._name,
            self._name_start,
            self._arguments,
            self._arguments_end,
            self._ended,
            self.raw,
            tracker,
        ]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        tracker = saved.tracker
        needs_tracker = saved.phase in (_ARGUMENTS, _OTHER)
        held = len(saved.raw)
        if (
            not 0 <= saved.phase <= _AFTER
            or needs_tracker != (tracker is not None)
            or (saved.committed and held)
            or held > self._hold_limit
            or not 0 <= saved.name_start <= held
            or not -1 <= saved.arguments <= held
            or not -1 <= saved.arguments_end <= held
        ):
            raise ValueError("impossible call state")
        self._phase, self.committed, self._key = saved.phase, saved.committed, saved.key
        self._first, self._escaped = saved.first, saved.escaped
        self._name, self._name_start = saved.name, saved.name_start
        self._arguments, self._arguments_end, self._ended = saved.arguments, saved.arguments_end, saved.ended
        self._parts, self._held = ([saved.raw] if saved.raw else []), held
        self._tracker = JsonTracker.load(tracker) if tracker is not None else None


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    phase: int
    committed: bool
    key: str
    first: bool
    escaped: bool
    name: str | None
    name_start: int
    arguments: int
    arguments_end: int
    ended: bool
    raw: str
    tracker: list[Any] | None


def _decode_string(raw: str) -> str | None:
    """The text of a JSON string literal; None when it is none."""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return None
