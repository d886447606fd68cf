"""A number or a word of Python as JSON: all spellings of numbers, ``True`` and ``None``."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_WORDS: Final = {
    "True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null",
}  # fmt: skip
_INTEGER: Final = re.compile(r"([+-]?)0*(\d+)")
_BASED: Final = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+)")
_FLOAT: Final = re.compile(r"([+-]?)0*(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")


def token_json(token: str) -> str:
    """A word that means nothing is the string that it spells."""
    if token in _WORDS:
        return _WORDS[token]
    digits = token.replace("_", "") if token[:1] != "_" else token
    if match := _INTEGER.fullmatch(digits):
        return ("-" if match[1] == "-" else "") + match[2]
    if match := _BASED.fullmatch(digits):
        return ("-" if match[1] == "-" else "") + str(int(match[2], 0))
    match = _FLOAT.fullmatch(digits)
    if match and (match[2] or match[3] or "0" in digits) and digits.strip("+-.")[:1] not in ("", "e", "E"):
        exponent = f"e{match[4]}" if match[4] else ""
        return f"{'-' if match[1] == '-' else ''}{match[2] or '0'}.{match[3] or '0'}{exponent}"
    return msgspec.json.encode(token).decode()
