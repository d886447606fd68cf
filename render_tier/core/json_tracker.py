"""Where a JSON value ends, and whether it is valid, without keeping its text.

A pushdown automaton over characters; its state is a mode, a stack of brackets and, inside a scalar, where
in it. Text is never stored, so a megabyte of arguments costs the same per character as the first byte. Runs
inside strings are skipped by a regular expression.

Invalid JSON does not stop it: ``valid`` turns False and from there on it only balances brackets and
strings, so that the value of a model that writes almost-JSON still ends where its author meant. A ``<``
outside a string ends an invalid value: it starts the marker that closes the call.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 512
"""Nesting beyond which a value counts as invalid and only its depth is counted: bounds the saved stack.
Readers of JSON give up near here too (Python's at about 1000)."""


# Modes. Plain integers: they are compared for every piece of text.
VALUE: Final = 0
FIRST_ELEMENT: Final = 1  # a value or "]"
FIRST_KEY: Final = 2  # a string or "}"
KEY: Final = 3
COLON: Final = 4
AFTER: Final = 5  # after an element: "," or a closing bracket
STRING: Final = 6
ESCAPE: Final = 7
HEX: Final = 8  # digits after a u escape; `detail` counts those still to come
NUMBER: Final = 9  # `detail`: state of _NUMBER
WORD: Final = 10  # `detail`: index in _PREFIXES
LOOSE: Final = 11  # invalid: only brackets and strings count
LOOSE_SCALAR: Final = 12  # invalid scalar at the root: ends at a delimiter
DONE: Final = 13
BROKEN: Final = 14  # strict and invalid

_STRING_RUN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_STRING_MARK: Final = re.compile(r'["\\\x00-\x1f]').search
_MAY_END: Final = re.compile(r"[}\]<]").search
_LOOSE_RUN: Final = re.compile(r'[^"<{}\[\]]+')
_BLANKS: Final = " \t\n\r"
_PREFIXES: Final = ("t", "tr", "tru", "true", "f", "fa", "fal", "fals", "false", "n", "nu", "nul", "null")
_PREFIX_INDEX: Final = {prefix: index for index, prefix in enumerate(_PREFIXES)}
_WORDS: Final = frozenset(_PREFIX_INDEX[word] for word in ("true", "false", "null"))


def _number_table() -> tuple[dict[str, int], ...]:
    """RFC 8259's number as states: 0 start, 1 minus, 2 zero, 3 integer, 4 point, 5 fraction, 6 e, 7 sign, 8
    exponent."""
    digits, nonzero = "0123456789", "123456789"
    rows: list[list[tuple[str, int]]] = [
        [("-", 1), ("0", 2), (nonzero, 3)],
        [("0", 2), (nonzero, 3)],
        [(".", 4), ("eE", 6)],
        [(digits, 3), (".", 4), ("eE", 6)],
        [(digits, 5)],
        [(digits, 5), ("eE", 6)],
        [("+-", 7), (digits, 8)],
        [(digits, 8)],
        [(digits, 8)],
    ]
    return tuple({character: to for characters, to in row for character in characters} for row in rows)


_NUMBER: Final = _number_table()
_NUMBER_ENDS: Final = frozenset({2, 3, 5, 8})
_SCALAR_END: Final = frozenset(_BLANKS + ',}]<"')


class JsonTracker:
    """Follows one JSON value. ``started`` once its first visible character was read, ``settled`` once the
    value is plausibly JSON: a scalar or array has begun, or an object's brace is followed by a quote or a
    brace."""

    __slots__ = ("deeper", "detail", "is_key", "mode", "stack", "strict", "valid")

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.mode = VALUE
        self.detail = 0
        self.stack = bytearray()
        self.deeper = 0  # brackets open beyond MAX_DEPTH
        self.is_key = False  # the string being read is an object's key
        self.valid = True

    @property
    def started(self) -> bool:
        return self.mode != VALUE or bool(self.stack)

    @property
    def ends_here(self) -> bool:
        """Whether what was read is a whole value: a number ends only where the text does."""
        if self.stack or not self.valid:
            return False
        if self.mode == NUMBER:
            return self.detail in _NUMBER_ENDS
        return self.mode == DONE or (self.mode == WORD and self.detail in _WORDS)

    @property
    def settled(self) -> bool:
        if len(self.stack) == 1 and self.mode == FIRST_KEY:
            return False
        return self.valid and self.started

    def plain(self, text: str) -> bool:
        """The short way of `feed` where it is certain that the value goes on behind ``text`` and is valid so
        far as before. False: nothing was read."""
        if self.mode == STRING and _STRING_MARK(text) is None:
            return True
        if not self.stack or not self.valid or _MAY_END(text) is not None:
            return False
        mode, detail, is_key, depth = self.mode, self.detail, self.is_key, len(self.stack)
        self.feed(text, 0)
        if self.valid:
            return True
        self.mode, self.detail, self.is_key, self.valid, self.deeper = mode, detail, is_key, True, 0
        del self.stack[depth:]
        return False

    def feed(self, text: str, index: int) -> int:
        """Read ``text[index:]``. Returns the index after the value's last character, or -1 when it goes
        on."""
        length = len(text)
        while index < length:
            mode = self.mode
            if mode == STRING:
                run = _STRING_RUN.match(text, index)
                if run is not None:
                    index = run.end()
                    if index == length:
                        return -1
                character = text[index]
                index += 1
                if character == '"':
                    if self._string_ends():
                        return index
                elif character == "\\":
                    self.mode = ESCAPE
                else:  # a control character: not JSON, but the string goes on
                    self._spoil(STRING)
            elif mode == NUMBER:
                to = _NUMBER[self.detail].get(text[index])
                if to is not None:
                    self.detail = to
                    index += 1
                elif not self._scalar_ends(text[index], self.detail in _NUMBER_ENDS):
                    return index
            elif mode == WORD:
                longer = _PREFIX_INDEX.get(_PREFIXES[self.detail] + text[index])
                if longer is not None:
                    self.detail = longer
                    index += 1
                elif not self._scalar_ends(text[index], self.detail in _WORDS):
                    return index
            elif mode == LOOSE:
                run = _LOOSE_RUN.match(text, index)
                if run is not None:
                    index = run.end()
                    if index == length:
                        return -1
                if text[index] == "<":
                    self.mode = DONE
                    return index
                if self._loose(text[index]):
                    return index + 1
                index += 1
            elif mode == ESCAPE:
                character = text[index]
                index += 1
                if character == "u":
                    self.mode, self.detail = HEX, 4
                else:
                    self.mode = STRING
                    if character not in '"\\/bfnrt':
                        self._spoil(STRING)
            elif mode == HEX:
                if text[index] in "0123456789abcdefABCDEF":
                    index += 1
                    self.detail -= 1
                    if self.detail == 0:
                        self.mode = STRING
                else:
                    self._spoil(STRING)
            elif mode == LOOSE_SCALAR:
                if text[index] in _SCALAR_END:
                    self.mode = DONE
                    return index
                index += 1
            elif mode >= DONE:
                return index
            else:
                character = text[index]
                if character in _BLANKS:
                    index += 1
                    continue
                if self._structure(character):
                    index += 1
                    if self.mode == DONE:
                        return index
                elif self.mode == LOOSE_SCALAR and character in _SCALAR_END:
                    self.mode = DONE
                    return index
        return -1

    def _string_ends(self) -> bool:
        """True when the string was the whole value."""
        if not self.valid and (self.stack or self.deeper):
            self.mode = LOOSE
        elif self.is_key:
            self.is_key = False
            self.mode = COLON
        else:
            return self._value_ends()
        return False

    def _value_ends(self) -> bool:
        if self.stack:
            self.mode = AFTER
            return False
        self.mode = DONE
        return True

    def _scalar_ends(self, character: str, whole: bool) -> bool:
        """The character after a scalar. False when the scalar was the root value and ends before it."""
        if whole and (character in _SCALAR_END or not self.stack):
            return not self._value_ends()
        self._break()
        return True

    def _break(self) -> None:
        self._spoil(LOOSE if self.stack else LOOSE_SCALAR)

    def _spoil(self, mode: int) -> None:
        """Not JSON; goes on in ``mode`` unless strict."""
        self.valid = False
        self.mode = BROKEN if self.strict else mode

    def _structure(self, character: str) -> bool:
        """One visible character between values. True when it is consumed; on an error the mode turns loose
        and the character is read again."""
        mode = self.mode
        if character == '"' and mode != COLON and mode != AFTER:
            self.is_key = mode in (FIRST_KEY, KEY)
            self.mode = STRING
            return True
        if mode in (VALUE, FIRST_ELEMENT):
            if character in "{[":
                return self._open(character)
            if character in _NUMBER[0]:
                self.mode, self.detail = NUMBER, _NUMBER[0][character]
                return True
            if character in _PREFIX_INDEX:
                self.mode, self.detail = WORD, _PREFIX_INDEX[character]
                return True
        if mode == COLON and character == ":":
            self.mode = VALUE
            return True
        if mode == AFTER and character == ",":
            self.mode = KEY if self.stack[-1] == 0x7B else VALUE
            return True
        closes = (character == "}" and mode in (FIRST_KEY, AFTER) and self.stack[-1] == 0x7B) or (
            character == "]" and mode in (FIRST_ELEMENT, AFTER) and self.stack[-1] == 0x5B
        )
        if closes:
            self.stack.pop()
            self._value_ends()
            return True
        self._break()
        return False

    def _open(self, character: str) -> bool:
        if len(self.stack) >= MAX_DEPTH:
            self._break()
            return False
        self.stack.append(ord(character))
        self.mode = FIRST_KEY if character == "{" else FIRST_ELEMENT
        return True

    def _loose(self, character: str) -> bool:
        """A bracket or quote in invalid JSON. True when the value ends with it."""
        if character == '"':
            self.mode = STRING
        elif character in "{[":
            if len(self.stack) < MAX_DEPTH:
                self.stack.append(ord(character))
            else:
                self.deeper += 1
        elif self.deeper:
            self.deeper -= 1
        else:
            self.stack.pop()
            if not self.stack:
                self.mode = DONE
                return True
        return False

    def dump(self) -> list[Any]:
        return [self.mode, self.detail, bytes(self.stack), self.deeper, self.is_key, self.valid]

    @classmethod
    def load(cls, state: Any, *, strict: bool = False) -> JsonTracker:
        """The tracker that `dump` described. Raises ValueError or msgspec.ValidationError otherwise."""
        saved = msgspec.convert(state, _Saved)
        self = cls(strict=strict)
        self.mode, self.detail, self.deeper = saved.mode, saved.detail, saved.deeper
        self.stack = bytearray(saved.stack)
        self.is_key, self.valid = saved.is_key, saved.valid
        limit = {NUMBER: len(_NUMBER), WORD: len(_PREFIXES), HEX: 5}.get(self.mode, 1 << 31)
        needs_stack = self.mode in (FIRST_ELEMENT, FIRST_KEY, KEY, COLON, AFTER, LOOSE)
        if (
            not 0 <= self.mode <= DONE
            or not 0 <= self.detail < limit
            or self.deeper < 0
            or len(self.stack) > MAX_DEPTH
            or self.stack.strip(b"{[")
            or (needs_stack and not self.stack)
            or (self.is_key and not self.stack)
        ):
            raise ValueError("impossible JSON tracker state")
        return self


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    mode: int
    detail: int
    stack: bytes
    deeper: int
    is_key: bool
    valid: bool
