"""What the harmony library may be given to encode: descriptions and names of functions, of bounded cost.

The library cuts a text into runs of letters, of blanks and of signs. Its time grows with the square of a
run's bytes, and it holds the interpreter lock meanwhile.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import count, groupby
from typing import Any

from render_tier.protocol.validation import invalid
from render_tier.rendering.json_texts import texts_of

LONGEST_RUN = 2000
"""Characters."""
SHORT_RUN = 64
"""Characters; shorter runs are not looked at one by one."""
MOST_WORK = 1 << 28
"""Sum of the squares of all runs' bytes; a processor does about 10^9 in a second."""
BASIC = 1 << 16
BEYOND = "\U00010000-\U0010ffff"
WIDEST = 4
"""Bytes of one character."""
CONTROL_BLANKS = "\x1c\x1d\x1e\x1f"
"""Blanks to Python, signs to the library."""
UNBROKEN = re.compile(rf"[\S{CONTROL_BLANKS}]{{{SHORT_RUN},}}|\s{{{SHORT_RUN},}}")
"""Where long runs can be."""


def check_tools(tools: list[dict[str, Any]]) -> None:
    """Raises BadRequest. The library writes texts of the tools as they are, and values among them (defaults)
    as JSON, whose brackets and quotes make runs too."""
    _check(texts_of(tools), "tools")
    for is_sorted in (False, True):
        written = json.dumps(tools, ensure_ascii=False, separators=(",", ":"), sort_keys=is_sorted)
        _check([written], "tools")


def check_names(names: Iterable[str]) -> None:
    """``names``: of functions, as often as they are written. Raises BadRequest."""
    _check(names, "messages")


def _check(texts: Iterable[str], param: str) -> None:
    work = 0
    for text in texts:
        work += SHORT_RUN * (1 if text.isascii() else WIDEST) * _size(text)
        for runs in _long_runs() if UNBROKEN.search(text) else ():
            for found in runs.finditer(text):
                length = found.end() - found.start()
                if length > LONGEST_RUN:
                    raise invalid(
                        f"{param}: what describes or names a function may not have {LONGEST_RUN} characters "
                        "in one word",
                        param,
                    )
                work += _size(found.group()) ** 2
        if work > MOST_WORK:
            raise invalid(f"{param}: what describes or names functions is too long", param)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@cache
def _long_runs() -> tuple[re.Pattern[str], ...]:
    """Of letters, of blanks, of signs. Combining marks continue letters and signs alike, and so does what
    this Unicode version has not yet: the library's may be a later one. Beyond the basic plane, where there
    are no blanks, all characters are taken for both, so that the patterns stay small."""
    kinds = [_kinds(code) for code in range(BASIC)]
    beyond = {"L": BEYOND, "B": "", "S": BEYOND}
    return tuple(
        re.compile(f"[{_ranges(kinds, kind)}{more}]{{{SHORT_RUN},}}") for kind, more in beyond.items()
    )


def _kinds(code: int) -> str:
    character = chr(code)
    if character in CONTROL_BLANKS:
        return "BS"
    if character.isspace():
        return "B"
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cn":
        return "LS"
    return "L" if category[0] in "LN" else "S"


def _ranges(kinds: list[str], kind: str) -> str:
    """Of a character class: the codes that are of the kind."""
    pieces = []
    codes = count()
    for has, group in groupby(kinds, lambda each: kind in each):
        places = [next(codes) for _ in group]
        if has:
            pieces.append(f"\\u{places[0]:04x}-\\u{places[-1]:04x}")
    return "".join(pieces)
