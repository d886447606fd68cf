"""The input of a custom tool out of the arguments of the function that stands for it.

The model is shown a function with one string argument, ``input``, and writes ``{"input": "..."}``. The string
is read as it comes, escapes and all. Arguments of any other shape are the input as they stand, as in vLLM;
that is known at their first character that does not fit.
"""

from __future__ import annotations

import json
from typing import Final

HEAD: Final = '{"input":"'
BLANKS: Final = " \t\r\n"
BLANKS_BEFORE: Final = frozenset({0, 1, 8, 9})
"""Places in `HEAD` before which white space may stand."""
MAX_HEAD: Final = 64
"""Characters, blanks among them, within which the shape must show."""

BEFORE, INSIDE, AFTER, OTHER = range(4)
ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class CustomInput:
    """``held``: what has come but is not decided: the beginning of the arguments, or of an escape."""

    def __init__(self, place: int = BEFORE, held: str = "") -> None:
        self._place = place
        self._held = held

    @classmethod
    def load(cls, state: bytes) -> CustomInput:
        """Goes on from what `dump` gave; from anything else it makes an input that is of no use."""
        place = state[0] if state and state[0] <= OTHER else BEFORE
        return cls(place, state[1:].decode(errors="replace")[:MAX_HEAD])

    def dump(self) -> bytes:
        return bytes([self._place]) + self._held.encode(errors="surrogatepass")

    def feed(self, text: str) -> str:
        """More of the arguments; returns more of the input."""
        if self._place == OTHER:
            return text
        if self._place == BEFORE:
            text = self._head(self._held + text)
            if self._place in (BEFORE, OTHER):
                return text
        else:
            text, self._held = self._held + text, ""
        return self._string(text) if self._place == INSIDE else ""

    def finish(self) -> str:
        """The arguments end here; returns the rest of the input."""
        return self._held if self._place == BEFORE else ""

    def _head(self, text: str) -> str:
        """What follows the opening quote, if the arguments have the shape; else all of them."""
        self._held = ""
        expected = 0
        for position, character in enumerate(text):
            if character == HEAD[expected]:
                expected += 1
                if expected == len(HEAD):
                    self._place = INSIDE
                    return text[position + 1 :]
            elif character not in BLANKS or expected not in BLANKS_BEFORE or position >= MAX_HEAD - 1:
                self._place = OTHER
                return text
        self._held = text
        return ""

    def _string(self, text: str) -> str:
        out: list[str] = []
        position = 0
        while position < len(text):
            character = text[position]
            if character == '"':
                self._place = AFTER
                break
            if character != "\\":
                out.append(character)
                position += 1
                continue
            length = self._escape(text, position, out)
            if not length:
                self._held = text[position:]
                break
            position += length
        return "".join(out)

    @staticmethod
    def _escape(text: str, position: int, out: list[str]) -> int:
        """The length of the escape at ``position``; 0 when it is not complete."""
        kind = text[position + 1 : position + 2]
        if not kind:
            return 0
        if kind != "u":
            out.append(ESCAPES.get(kind, kind))
            return 2
        digits = text[position + 2 : position + 6]
        if len(digits) < 4:
            return 0
        pair = text[position + 6 : position + 12]
        high = digits[:2].lower() in ("d8", "d9", "da", "db")
        if high and len(pair) < 6 and "\\u".startswith(pair[:2]):
            return 0
        length = 12 if high and pair.startswith("\\u") else 6
        try:
            spelled = json.loads(f'"{text[position : position + length]}"')
            spelled.encode()
        except ValueError:
            spelled, length = "\ufffd", 6
        out.append(spelled)
        return length
