"""Tool calls written as Python: ``[name(key=value, ...), ...]``, or one call after another.

The calls are committed with the first key of the first one, or with its closing bracket when it has none.
Before that, what is no such call is text. Values become JSON as they come (`python_literal`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from render_tier.core.body import Calls, Status
from render_tier.core.python_literal import PythonLiteral

_OPEN: Final = 0  # the list's bracket
_NAME: Final = 1  # a function's name, or the closing bracket
_IN_NAME: Final = 2
_BRACKET: Final = 3  # after the name
_KEY: Final = 4  # a key, or the call's closing bracket
_IN_KEY: Final = 5
_EQUALS: Final = 6
_VALUE: Final = 7
_AFTER_VALUE: Final = 8
_AFTER_CALL: Final = 9

_BLANKS: Final = " \t\r\n"
_WORD_LIMIT: Final = 256
"""Longest name of a function or key."""
_HEAD_LIMIT: Final = 1024
"""Text up to the first key of the first call; with more it is no call."""


@dataclass(frozen=True)
class PythonCallsFormat:
    """``listed``: the calls stand in a list's brackets; otherwise they follow each other, on lines of their
    own or with commas between, up to the text that is none."""

    listed: bool = True

    def open(self, marker: str, hold_limit: int) -> PythonCalls:
        return PythonCalls(self, marker, hold_limit)

    def load(self, state: Any, hold_limit: int) -> PythonCalls:
        calls = PythonCalls(self, "", hold_limit)
        calls.restore(state)
        return calls


class PythonCalls:
    """The body parser (`body.Body`) of `PythonCallsFormat`."""

    def __init__(self, fmt: PythonCallsFormat, marker: str, hold_limit: int) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self._format = fmt
        self._hold_limit = hold_limit
        self._phase = _OPEN if fmt.listed else _NAME
        self._held = marker
        self._name = ""
        self._word = ""
        self._keys = 0  # keys of the current call so far
        self._in_call = False
        self._literal: PythonLiteral | None = None

    @property
    def raw(self) -> str:
        return "" if self.committed else self._held

    def feed(self, text: str, start: int, calls: Calls) -> int:
        index, length = start, len(text)
        while index < length and self.status is Status.RUNNING:
            if self._literal is not None:
                index = self._value(self._literal, text, index, calls)
                continue
            used = self._character(text[index], calls)
            if used and not self.committed:
                self._held += text[index]
                if len(self._held) > min(self._hold_limit, _HEAD_LIMIT):
                    self.status = Status.FAILED
            index += used
        return index

    def plain(self, text: str) -> str | None:
        return self._literal.plain(text) if self._literal is not None else None

    def _value(self, literal: PythonLiteral, text: str, index: int, calls: Calls) -> int:
        out: list[str] = []
        end = literal.feed(text, index, out)
        if out:
            calls.call_arguments("".join(out))
        if not literal.valid:
            self._stop(calls)
        elif end >= 0:
            self._literal, self._phase = None, _AFTER_VALUE
        return len(text) if end < 0 else end

    def _character(self, character: str, calls: Calls) -> bool:
        """One character of the syntax. False when it is not consumed."""
        phase = self._phase
        if phase in (_IN_NAME, _IN_KEY):
            return self._in_word(character, calls)
        if character in _BLANKS:
            return True
        wordlike = character.isalpha() or character == "_"
        if phase in (_NAME, _KEY) and wordlike:
            self._phase, self._word = phase + 1, character
        elif phase == _OPEN and character == "[":
            self._phase = _NAME
        elif phase == _BRACKET and character == "(":
            self._phase = _KEY
        elif phase in (_KEY, _AFTER_VALUE) and character == ")":
            self._call_ends(calls)
        elif phase == _EQUALS and character == "=":
            self._key(calls)
        elif phase == _AFTER_VALUE and character == ",":
            self._phase = _KEY
        elif phase == _AFTER_CALL and character == ",":
            self._phase = _NAME
        elif phase == _AFTER_CALL and wordlike and not self._format.listed:
            self._phase, self._word = _IN_NAME, character
        elif character == "]" and self.committed and self._format.listed and phase in (_NAME, _AFTER_CALL):
            self.status = Status.DONE
        else:
            self._stop(calls)
            return False
        return True

    def _in_word(self, character: str, calls: Calls) -> bool:
        if (character.isalnum() or character in "_.") and len(self._word) < _WORD_LIMIT:
            self._word += character
            return True
        if self._phase == _IN_NAME:
            self._name, self._phase, self._keys = self._word, _BRACKET, 0
            if self._word.endswith(".") or character not in "( \t":
                self._stop(calls)
        else:
            self._phase = _EQUALS
        return False

    def _begin(self, calls: Calls) -> None:
        if not self._in_call:
            self._in_call = self.committed = True
            self._held = ""
            calls.call_start(self._name)

    def _key(self, calls: Calls) -> None:
        self._begin(calls)
        opening = ", " if self._keys else "{"
        calls.call_arguments(f"{opening}{msgspec.json.encode(self._word).decode()}: ")
        self._keys += 1
        self._word = ""
        self._phase, self._literal = _VALUE, PythonLiteral()

    def _call_ends(self, calls: Calls) -> None:
        self._begin(calls)
        calls.call_arguments("}" if self._keys else "{}")
        calls.call_end(True)
        self._in_call = False
        self._phase = _AFTER_CALL

    def _stop(self, calls: Calls) -> None:
        """The text is no call, or no longer one."""
        if not self.committed:
            self.status = Status.FAILED
            return
        if self._in_call:
            self._in_call = False
            calls.call_end(False)
        self.status = Status.DONE

    def finish(self, calls: Calls) -> None:
        self._stop(calls)

    close = finish

    def dump(self) -> list[Any]:
        literal = self._literal.dump() if self._literal is not None else None
        return [
            self._phase,
            self.committed,
            self._held,
            self._name,
            self._word,
            self._keys,
            self._in_call,
            literal,
        ]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if (
            not _OPEN <= saved.phase <= _AFTER_CALL
            or (saved.phase == _VALUE) != (saved.literal is not None)
            or (saved.committed and saved.held)
            or len(saved.held) > self._hold_limit
            or max(len(saved.name), len(saved.word)) > _WORD_LIMIT
            or saved.keys < 0
            or (saved.in_call and not saved.committed)
        ):
            raise ValueError("impossible state of calls in Python")
        self._phase, self.committed, self._held = saved.phase, saved.committed, saved.held
        self._name, self._word = saved.name, saved.word
        self._keys, self._in_call = saved.keys, saved.in_call
        self._literal = PythonLiteral.load(saved.literal) if saved.literal is not None else None


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    phase: int
    committed: bool
    held: str
    name: str
    word: str
    keys: int
    in_call: bool
    literal: list[Any] | None
