"""Gemma 4's calls, ``call:NAME{key:value,...}``, turned into JSON argument text as they come.

Strings stand between ``<|"|>``, nested values in braces and brackets, everything else is a bare word. Bare
words are strings until the tool's schema types them, at any depth. A string of the top level goes out as it
comes, any other value when it is complete (`argument_writer`).

The marker that ends a call is a token that no value contains, so it ends the call wherever it stands. What
is open then, or when the output ends, is closed: the arguments are valid JSON always, as in vLLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from render_tier.core.argument_writer import VERBATIM, ArgumentWriter, Key
from render_tier.core.body import Calls, Status
from render_tier.core.fragments import Look, Scanner, literal

QUOTE: Final = '<|"|>'

# Phases.
_PREFIX: Final = 0  # before the name
_NAME: Final = 1
_KEY: Final = 2
_VALUE: Final = 3  # before a value
_STRING: Final = 4
_BARE: Final = 5
_NESTED: Final = 6

_BLANKS: Final = " \n\t"
_NAME_LIMIT: Final = 1024
"""Longest name or key; a longer one is none."""
_DEPTH: Final = 64
"""Nesting beyond which a value is passed on as text."""


@dataclass(frozen=True)
class GemmaCallFormat:
    """``end`` and ``start``: the markers of the table that end a call. The state's ``routes`` has both."""

    start: str
    end: str

    @cached_property
    def scanners(self) -> tuple[Scanner, ...]:
        """What each phase looks for."""
        over = (self.end, self.start)
        marks = (
            ("call:", ":", *over),
            ("{", "(", *over),
            (":", *over),
            (QUOTE, "{", "[", *over),
            (QUOTE, self.end),
            (",", "}", "]", *over),
            (QUOTE, "{", "}", "[", "]", self.end),
        )
        return tuple(Scanner({mark: Look(literal(mark)) for mark in each}) for each in marks)

    def open(self, marker: str, hold_limit: int) -> GemmaCall:
        return GemmaCall(self, hold_limit)

    def load(self, state: Any, hold_limit: int) -> GemmaCall:
        call = GemmaCall(self, hold_limit)
        call.restore(state)
        return call


class GemmaCall:
    """The body parser (`body.RoutedBody`) of `GemmaCallFormat`. It is committed from the start."""

    def __init__(self, fmt: GemmaCallFormat, hold_limit: int) -> None:
        self.status = Status.RUNNING
        self.committed = True
        self.raw = ""
        self.route = ""
        self._format = fmt
        self._scanners = fmt.scanners
        self._string_scanner = fmt.scanners[_STRING]
        self._hold_limit = hold_limit
        self._phase = _PREFIX
        self._held = ""  # may be the beginning of markup
        self._parts: list[str] = []  # of a name, key, bare or nested value
        self._size = 0  # characters in _parts
        self._key = ""  # of the value; a key that cannot be one is empty
        self._poured = False  # a bare or nested value is too long to be held: it goes out as text
        self._brace = False  # a brace at the end of a string, which ends the call if the string is not closed
        self._round = False  # the arguments stand in round brackets
        self._depth = 0  # of a nested value, in brackets of its outermost kind
        self._square = False  # that kind is [ and not {
        self._quoted = False  # inside a string of a nested value
        self._arguments = ArgumentWriter(VERBATIM, hold_limit)

    def feed(self, text: str, start: int, calls: Calls) -> int:
        if start:
            text = text[start:]
        before = len(self._held) - start
        if self._held:
            text, self._held = self._held + text, ""
        index = 0
        while self.status is Status.RUNNING:
            if self._phase == _VALUE:
                while index < len(text) and text[index] in _BLANKS:
                    index += 1
            found = self._scanners[self._phase].next(text, index)
            if found.start > index and self._phase == _VALUE:
                self._phase = _BARE
                continue
            if found.start > index:
                self._plain(text[index : found.start], calls)
            if not found.kind:
                self._held = text[found.start :]
                index = len(text)
                break
            index = found.end
            self._mark(found.kind, calls)
        return index - before

    def plain(self, text: str) -> str | None:
        if self._phase != _STRING or self._held or self._brace or text[-1] == "}":
            return None
        return self._arguments.plain(text) if self._string_scanner.first(text) is None else None

    def finish(self, calls: Calls) -> None:
        self._over(self._format.end, calls)

    close = finish

    def _plain(self, text: str, calls: Calls) -> None:
        phase = self._phase
        if phase == _STRING:
            self._string(text, calls)
        elif phase in (_NAME, _KEY):
            self._keep(text[: max(0, _NAME_LIMIT + 1 - self._size)])
        elif phase != _PREFIX:
            self._hold(text, calls)

    def _mark(self, mark: str, calls: Calls) -> None:
        fmt, phase = self._format, self._phase
        if mark == fmt.end or mark == fmt.start:
            self._over(mark, calls)
        elif phase == _PREFIX:
            self._phase = _NAME
        elif phase == _NAME:
            self._start_call(calls)
            self._phase, self._round = _KEY, mark == "("
        elif phase == _KEY:
            self._read_key()
            self._phase = _VALUE
        elif phase == _VALUE and mark == QUOTE:
            self._phase = _STRING
            self._arguments.begin(Key(self._key), calls)
        elif phase == _VALUE:
            self._phase, self._depth, self._square = _NESTED, 1, mark == "["
            self._hold(mark, calls)
        elif phase == _STRING:
            self._end_string(calls)
        elif phase == _BARE:
            self._end_bare(calls)
        else:
            self._nested(mark, calls)

    def _over(self, route: str, calls: Calls) -> None:
        """The call ends, wherever it is."""
        if self._phase == _NAME:
            self._start_call(calls)
        elif self._phase == _VALUE:
            self._arguments.begin(Key(self._key), calls)
            self._arguments.end_value(calls)
        elif self._phase == _STRING:
            self._arguments.end_value(calls)
        elif self._phase == _BARE:
            self._end_bare(calls)
        elif self._phase == _NESTED:
            self._end_nested(calls)
        self._arguments.end(calls)
        self.status, self.route = Status.DONE, route

    def _start_call(self, calls: Calls) -> None:
        size, name = self._size, self._taken().strip()
        if name and size <= _NAME_LIMIT:
            self._arguments.start(name, calls)

    def _read_key(self) -> None:
        size, key = self._size, self._taken().lstrip(" ,\n\t})").strip()
        if len(key) >= 2 * len(QUOTE) and key.startswith(QUOTE) and key.endswith(QUOTE):
            key = key[len(QUOTE) : -len(QUOTE)]
        self._key = key if size <= _NAME_LIMIT else ""

    # --- values ---

    def _string(self, text: str, calls: Calls) -> None:
        if self._brace:
            text = "}" + text
        self._brace = text.endswith("}")
        if self._brace:
            text = text[:-1]
        if text:
            self._arguments.value(text, calls)

    def _end_string(self, calls: Calls) -> None:
        if self._brace:
            self._brace = False
            self._arguments.value("}", calls)
        self._arguments.end_value(calls)
        self._phase = _KEY

    def _hold(self, text: str, calls: Calls) -> None:
        if not self._poured:
            self._keep(text)
            if self._size <= self._hold_limit:
                return
            self._poured = True
            self._arguments.begin(Key(self._key), calls)
            text = self._taken()
        self._arguments.value(text, calls)

    def _end_bare(self, calls: Calls) -> None:
        word = self._taken().strip()
        if self._round and word.endswith(")") and word.count("(") < word.count(")"):
            word = word[:-1].rstrip()
        self._end_held(word, calls)

    def _end_held(self, text: str, calls: Calls) -> None:
        if not self._poured:
            self._arguments.begin(Key(self._key), calls)
            self._arguments.value(text, calls)
        self._arguments.end_value(calls)
        self._phase, self._poured = _KEY, False

    def _nested(self, mark: str, calls: Calls) -> None:
        self._hold(mark, calls)
        if mark == QUOTE:
            self._quoted = not self._quoted
        elif not self._quoted and (mark in "[]") == self._square:
            self._depth += 1 if mark in "[{" else -1
            if self._depth == 0:
                self._end_nested(calls)

    def _end_nested(self, calls: Calls) -> None:
        text, self._quoted, self._depth = self._taken(), False, 0
        if not self._poured:
            try:
                self._arguments.put(self._key, _Reader(text).read(), calls)
            except RecursionError:
                pass
            else:
                self._phase = _KEY
                return
        self._end_held(text, calls)

    # --- held text ---

    def _keep(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)

    def _taken(self) -> str:
        text = "".join(self._parts)
        self._parts, self._size = [], 0
        return text

    def dump(self) -> list[Any]:
        return [
            self._phase,
            self._held,
            "".join(self._parts),
            self._key,
            [self._poured, self._brace, self._round, self._square, self._quoted],
            self._depth,
            self._arguments.dump(),
        ]

    def restore(self, state: Any) -> None:
        """Take over what `dump` gave. Raises msgspec.ValidationError or ValueError for anything else."""
        saved = msgspec.convert(state, _Saved)
        if (
            not _PREFIX <= saved.phase <= _NESTED
            or len(saved.held) > len(self._format.end) + len(self._format.start)
            or len(saved.parts) > max(self._hold_limit, _NAME_LIMIT + 1)
            or len(saved.key) > _NAME_LIMIT
            or saved.depth < 0
        ):
            raise ValueError("impossible call state")
        self._phase, self._held, self._key, self._depth = saved.phase, saved.held, saved.key, saved.depth
        self._parts, self._size = ([saved.parts] if saved.parts else []), len(saved.parts)
        self._poured, self._brace, self._round, self._square, self._quoted = saved.flags
        self._arguments.restore(saved.arguments)


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    phase: int
    held: str
    parts: str
    key: str
    flags: tuple[bool, bool, bool, bool, bool]
    depth: int
    arguments: list[Any]


_KEY_END: Final = re.compile(r"[:}]")
_WORD: Final = re.compile(r"[^,}\]]*")
_ARRAY_WORD: Final = re.compile(r"[^,\]]*")


class _Reader:
    """Reads one nested value; bare words are strings. What is cut is closed, but a cut bare word is
    dropped.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._index = 0

    def read(self) -> Any:
        """Raises RecursionError for a value nested deeper than `_DEPTH`."""
        return self._value(_DEPTH, _WORD)

    def _value(self, depth: int, word: re.Pattern[str]) -> Any:
        """The value here, None for a bare word that the end of the text cuts."""
        text, start = self._text, self._index
        if depth == 0:
            raise RecursionError
        if text.startswith(QUOTE, start):
            start += len(QUOTE)
            end = text.find(QUOTE, start)
            self._index = len(text) if end < 0 else end + len(QUOTE)
            return text[start:] if end < 0 else text[start:end]
        if text.startswith("{", start):
            return self._object(depth)
        if text.startswith("[", start):
            return self._array(depth)
        match = word.match(text, start)
        assert match is not None
        self._index = match.end()
        return match[0].strip() if self._index < len(text) else None

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._index += 1
        while self._skip(" ,\n\t]"):
            found = _KEY_END.search(self._text, self._index)
            if found is None:
                self._index = len(self._text)
                break
            key = self._text[self._index : found.start()].strip()
            self._index = found.end()
            if found[0] == "}":
                break
            if key.startswith(QUOTE) and key.endswith(QUOTE) and len(key) >= 2 * len(QUOTE):
                key = key[len(QUOTE) : -len(QUOTE)]
            self._skip(_BLANKS)
            value = self._value(depth - 1, _WORD)
            if value is not None:
                members[key] = value
        return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._index += 1
        while self._skip(" ,\n\t"):
            if self._text[self._index] == "]":
                self._index += 1
                break
            value = self._value(depth - 1, _ARRAY_WORD)
            if value is not None:
                items.append(value)
        return items

    def _skip(self, characters: str) -> bool:
        """False at the end of the text."""
        text = self._text
        while self._index < len(text) and text[self._index] in characters:
            self._index += 1
        return self._index < len(text)
