"""Python literals turned into JSON as they come: the argument values of tool calls written as Python.

Strings (both quotes, triple, prefixes, escapes, one after another), numbers in all spellings, ``True``,
``None`` and JSON's words for them, lists, tuples, sets and dicts. The JSON is what ``json.dumps`` writes,
and goes out as soon as it is certain. What is certain late: the end of a string, because models forget to
escape a quote inside one. A quote ends a string only where the syntax can go on behind it; otherwise it was
text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from render_tier.core.json_tracker import MAX_DEPTH
from render_tier.core.python_token import token_json
from render_tier.core.tool_schema import quoted

TOKEN_LIMIT: Final = 1024
"""Longest number or word; Python itself refuses to read integers beyond 4300 digits."""
KEY_LIMIT: Final = 4096
"""Longest key of a dict; also the longest first element of a set, which looks like one."""
_GAP_LIMIT: Final = 256
"""White space after a string that is held back until it is known whether the string goes on."""

# Modes.
VALUE: Final = 0
TOKEN: Final = 1  # a number, a word, or the prefix of a string
QUOTE: Final = 2  # the quotes that open a string are being counted
STRING: Final = 3
QUOTES: Final = 4  # quotes inside a triple-quoted string are being counted
ESCAPE: Final = 5
DIGITS: Final = 6  # of an escape
NAMED: Final = 7  # the name in an escape such as ``\N{DEGREE SIGN}``
AFTER: Final = 8  # after an element
DONE: Final = 9

_BLANKS: Final = " \t\r\n"
_TOKEN_RUN: Final = re.compile(r"[\w.+-]+")
_RUNS: Final = {quote: re.compile(rf"[^\\{quote}]+") for quote in "'\""}
_MARKS: Final = {quote: re.compile(rf"[\\{quote}]").search for quote in "'\""}
_SIMPLE: Final = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_PREFIXES: Final = frozenset({"r", "u", "b", "f", "rb", "br", "rf", "fr"})
_CLOSERS: Final = {"[": "]", "(": ")", "d": "}", "s": "}", "?": "}"}


class PythonLiteral:
    """Reads one value. ``valid`` turns False where the text is no literal; reading stops there.

    The stack has one character per open bracket: ``[``, ``(``, ``d`` a dict, ``s`` a set, ``?`` a brace of
    which the first element is not known to be a key yet.
    """

    __slots__ = (
        "_capture",
        "_comma",
        "_detail",
        "_gap",
        "_key",
        "_mode",
        "_pending",
        "_quote",
        "_raw",
        "_stack",
        "_string",
        "_token",
        "valid",
    )

    def __init__(self) -> None:
        self.valid = True
        self._mode = VALUE
        self._stack = ""
        self._key = False  # a dict's key is being read
        self._comma = False  # a comma is due before the next element
        self._string = False  # the string's closing quote has been read but not written
        self._gap = ""  # that quote and what followed it
        self._quote = ""
        self._raw = False
        self._detail = 0
        self._token = ""
        self._pending = ""  # what is not certain yet: digits, quotes
        self._capture = ""  # JSON of a key or of a brace's first element

    def feed(self, text: str, index: int, out: list[str]) -> int:
        """Read ``text[index:]``, add JSON to ``out``. Returns the index of the first character after the
        value (a comma, a closing bracket, or anything when not ``valid``), or -1 when it goes on."""
        length = len(text)
        while index < length:
            mode = self._mode
            if mode == STRING:
                run = _RUNS[self._quote[0]].match(text, index)
                if run is not None:
                    self._text(run[0], out)
                    index = run.end()
                    if index == length:
                        return -1
                index = self._in_string(text[index], index, out)
            elif mode == TOKEN:
                run = _TOKEN_RUN.match(text, index)
                if run is not None:
                    self._token += run[0]
                    index = run.end()
                    if len(self._token) > TOKEN_LIMIT:
                        self.valid = False
                        return index
                    continue
                self._token_ends(text[index], out)
            elif mode in (AFTER, VALUE):
                if not self._structure(text[index], out):
                    return index
                index += 1
            else:
                index = self._inside(text[index], index, out)
            if not self.valid or self._mode == DONE:
                return index
        return -1

    def plain(self, text: str) -> str | None:
        """The short way of `feed` inside a string: the JSON of text in which nothing ends or is escaped. None
        when it is for `feed`."""
        if self._mode != STRING or self._key or _MARKS[self._quote[0]](text) is not None:
            return None
        return quoted(text)[1:-1]

    # --- structure ---

    def _structure(self, character: str, out: list[str]) -> bool:
        """A character between tokens. False when it is not part of the value."""
        if self._mode == VALUE:
            return character in _BLANKS or self._begins(character, out)
        if character in _BLANKS:
            if self._string and len(self._gap) < _GAP_LIMIT:
                self._gap += character
            return True
        if self._string:
            if character in "'\"":
                self._string, self._gap = False, ""
                self._open_quote(character)
                return True
            if not self._may_follow(character):
                gap, self._gap, self._string = self._gap, "", False
                self._text(gap, out)
                self._mode = STRING
                self._in_string_again(character, out)
                return True
            self._string, self._gap = False, ""
            self._write('"', out)
        return self._after(character, out)

    def _may_follow(self, character: str) -> bool:
        if character in ",)":
            return True
        if not self._stack:
            return False
        return character == _CLOSERS[self._stack[-1]] or (character == ":" and self._key)

    def _begins(self, character: str, out: list[str]) -> bool:
        """The first character of an element, or the bracket that closes the container."""
        stack = self._stack
        if stack and character == _CLOSERS[stack[-1]] and (stack[-1] != "d" or self._key):
            self._close(out)
            return True
        if character in "'\"":
            self._before_element(out)
            self._write('"', out)
            self._raw = False
            self._open_quote(character)
        elif character in "[({":
            self._open(character, out)
        elif character.isalnum() or character in "_.+-":
            self._before_element(out)
            self._mode, self._token = TOKEN, character
        else:
            self.valid = False
            return False
        return True

    def _before_element(self, out: list[str]) -> None:
        if self._comma:
            self._comma = False
            self._write(", ", out)

    def _open(self, character: str, out: list[str]) -> None:
        if len(self._stack) >= MAX_DEPTH or (self._key and self._stack[-1] == "d"):
            self.valid = False
            return
        if self._key:  # a container cannot be a key: the brace is a set
            self._settle_brace("s", out)
        self._before_element(out)
        if character == "{":
            self._stack += "?"
            self._key, self._capture = True, ""
        else:
            self._stack += character
            self._write("[", out)
        self._mode = VALUE

    def _settle_brace(self, kind: str, out: list[str]) -> None:
        self._stack = self._stack[:-1] + kind
        self._key = False
        captured, self._capture = self._capture, ""
        out.append("{" if kind == "d" else "[")
        if captured:
            out.append(_as_key(captured) if kind == "d" else captured)

    def _after(self, character: str, out: list[str]) -> bool:
        stack = self._stack
        if not stack:
            self._mode = DONE
            return False
        top = stack[-1]
        if character == ":" and self._key:
            if top == "?":
                self._settle_brace("d", out)
            else:
                self._key = False
                out.append(_as_key(self._capture))
                self._capture = ""
            out.append(": ")
            self._mode = VALUE
        elif character == "," and not (self._key and top == "d"):
            if top == "?":
                self._settle_brace("s", out)
            self._comma = True
            self._mode = VALUE
            self._key = top == "d"
            if self._key:
                self._comma = False
                self._capture = ", "
        elif character == _CLOSERS[top] and not (self._key and top == "d"):
            if top == "?":
                self._settle_brace("s", out)
            self._close(out)
        else:
            self.valid = False
            return False
        return True

    def _close(self, out: list[str]) -> None:
        """A closing bracket, after an element or after a trailing comma."""
        top, self._stack = self._stack[-1], self._stack[:-1]
        self._comma = False
        if top == "?":
            out.append("{")
            top = "d"
        self._key, self._capture = False, ""
        out.append("}" if top == "d" else "]")
        self._mode = AFTER if self._stack else DONE

    # --- tokens ---

    def _token_ends(self, character: str, out: list[str]) -> None:
        token, self._token = self._token, ""
        if character in "'\"" and token.lower() in _PREFIXES:
            self._write('"', out)
            self._raw = "r" in token.lower()
            self._open_quote(character)
            self._pending = ""  # the quote is read again by `_inside`
            return
        self._write(token_json(token), out)
        self._mode = AFTER

    # --- strings ---

    def _open_quote(self, quote: str) -> None:
        self._mode, self._quote, self._pending = QUOTE, quote, quote

    def _in_string(self, character: str, index: int, out: list[str]) -> int:
        """A backslash or a quote."""
        if character == "\\":
            if self._raw:
                self._text("\\", out)
                self._mode, self._detail = ESCAPE, -1
            else:
                self._mode = ESCAPE
        elif len(self._quote) == 1:
            self._mode, self._string, self._gap = AFTER, True, character
        else:
            self._mode, self._pending = QUOTES, character
        return index + 1

    def _in_string_again(self, character: str, out: list[str]) -> None:
        if character == "\\":
            self._in_string(character, 0, out)
        else:
            self._text(character, out)

    def _inside(self, character: str, index: int, out: list[str]) -> int:
        """One character of a quote run or an escape. Returns the index after it, or its own to read it
        again."""
        mode = self._mode
        if mode == QUOTE:
            if character == self._quote and len(self._pending) < 3:
                self._pending += character
                if len(self._pending) == 3:
                    self._mode, self._quote, self._pending = STRING, self._quote * 3, ""
                return index + 1
            empty = len(self._pending) == 2
            self._pending = ""
            if empty:
                self._mode, self._string, self._gap = AFTER, True, self._quote
            else:
                self._mode = STRING
            return index
        if mode == QUOTES:
            if character == self._quote[0]:
                self._pending += character
                if len(self._pending) == 3:
                    self._mode, self._string, self._gap = AFTER, True, self._pending
                    self._pending = ""
                return index + 1
            self._text(self._pending, out)
            self._mode, self._pending = STRING, ""
            return index
        if mode == ESCAPE:
            self._escape(character, out)
            return index + 1
        return self._escape_goes_on(character, index, out)

    def _escape(self, character: str, out: list[str]) -> None:
        self._mode = STRING
        if self._detail < 0:  # raw: the backslash is written already
            self._detail = 0
            self._text(character, out)
        elif character in _SIMPLE:
            self._text(_SIMPLE[character], out)
        elif character in _HEX:
            self._mode, self._detail, self._pending = DIGITS, _HEX[character], character
        elif character in "01234567":
            self._mode, self._detail, self._pending = DIGITS, 3, character
        elif character == "N":
            self._mode, self._pending = NAMED, ""
        else:
            self._text("\\" + character, out)

    def _escape_goes_on(self, character: str, index: int, out: list[str]) -> int:
        if self._mode == NAMED:
            self._pending += character
            if character == "}" or len(self._pending) > 100 or (self._pending[0] != "{"):
                self._text("\\N" + self._pending, out)  # names need a table of characters that is not here
                self._mode, self._pending = STRING, ""
            return index + 1
        pending = self._pending
        octal = pending[0] in "01234567"
        allowed = "01234567" if octal else "0123456789abcdefABCDEF"
        wanted = self._detail if octal else self._detail + 1
        if character in allowed and len(pending) < wanted:
            self._pending = pending = pending + character
            index += 1
            if len(pending) < wanted:
                return index
        elif not octal:
            self._text("\\" + pending, out)
            self._mode, self._pending = STRING, ""
            return index
        self._mode, self._pending, self._detail = STRING, "", 0
        code = int(pending, 8) if octal else int(pending[1:], 16)
        if 0xD800 <= code < 0xE000:
            self._write(f"\\u{code:04x}", out)
        else:
            self._text(chr(code) if code < 0x110000 else "\\" + pending, out)
        return index

    # --- out ---

    def _text(self, text: str, out: list[str]) -> None:
        if text:
            self._write(quoted(text)[1:-1], out)

    def _write(self, text: str, out: list[str]) -> None:
        if not self._key:
            out.append(text)
            return
        self._capture += text
        if len(self._capture) > KEY_LIMIT:
            self.valid = False

    def dump(self) -> list[Any]:
        return [
            self._mode,
            self._stack,
            self._key,
            self._comma,
            self._string,
            self._gap,
            self._quote,
            self._raw,
            self._detail,
            self._token,
            self._pending,
            self._capture,
        ]

    @classmethod
    def load(cls, state: Any) -> PythonLiteral:
        """The literal that `dump` described. Raises ValueError or msgspec.ValidationError otherwise."""
        saved = msgspec.convert(state, _Saved)
        quotes = saved.quote.strip("'") == "" or saved.quote.strip('"') == ""
        needs_quote = STRING <= saved.mode <= NAMED or saved.mode == QUOTE or saved.string
        if (
            not VALUE <= saved.mode < DONE
            or saved.stack.strip("[(ds?")
            or len(saved.stack) > MAX_DEPTH
            or (saved.key and saved.stack[-1:] not in ("d", "?"))
            or not quotes
            or len(saved.quote) not in (0, 1, 3)
            or (needs_quote and not saved.quote)
            or not -1 <= saved.detail <= 8
            or (saved.mode == DIGITS and not _is_escape(saved.pending))
            or len(saved.pending) > 101
            or len(saved.gap) > _GAP_LIMIT + 3
            or max(len(saved.token), len(saved.capture)) > KEY_LIMIT
        ):
            raise ValueError("impossible literal state")
        self = cls()
        self._mode, self._stack, self._key, self._comma = saved.mode, saved.stack, saved.key, saved.comma
        self._string, self._gap, self._quote, self._raw = saved.string, saved.gap, saved.quote, saved.raw
        self._detail, self._token = saved.detail, saved.token
        self._pending, self._capture = saved.pending, saved.capture
        return self


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    mode: int
    stack: str
    key: bool
    comma: bool
    string: bool
    gap: str
    quote: str
    raw: bool
    detail: int
    token: str
    pending: str
    capture: str


def _is_escape(pending: str) -> bool:
    digits = pending if pending[:1] in tuple("01234567") else pending[1:]
    return pending[:1] in tuple("01234567xuU") and not digits.strip("0123456789abcdefABCDEF")


def _as_key(captured: str) -> str:
    """JSON of a key: strings as they are, other values as ``json.dumps`` writes them in keys."""
    comma = ", " if captured.startswith(", ") else ""
    value = captured[len(comma) :]
    return comma + (value if value.startswith('"') else f'"{value}"')
