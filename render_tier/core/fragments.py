"""Regular expressions that also know their own beginnings, for markup that arrives in pieces.

A `Fragment` has two patterns: ``full`` matches the whole thing, ``begin`` any beginning of it that is not
empty (to be used with an end-of-text anchor). A `Scanner` looks for several of them at once and says from
where on the text must be held back because it may still become one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

BLANK_RUN: Final = 64
"""White space looked across inside markup. What stands behind a longer run is not looked at."""


class Fragment(NamedTuple):
    """``firsts``: the characters it can begin with; all patterns are without capturing groups."""

    full: str
    begin: str
    firsts: str = ""


def literal(text: str) -> Fragment:
    """Exactly this text; not empty."""
    begin = ""
    for character in reversed(text):
        begin = re.escape(character) + (f"(?:{begin})?" if begin else "")
    return Fragment(re.escape(text), begin, text[0])


def blanks(least: int = 0, most: int = BLANK_RUN) -> Fragment:
    """White space."""
    return Fragment(rf"\s{{{least},{most}}}", rf"\s{{1,{most}}}")


def sequence(*parts: Fragment) -> Fragment:
    """One after the other."""
    full, begin, _ = parts[-1]
    for part in reversed(parts[:-1]):
        begin = f"(?:{part.full}{begin}|{part.begin})"
        full = part.full + full
    return Fragment(full, begin, parts[0].firsts)


def either(parts: Iterable[Fragment]) -> Fragment:
    """Any of them."""
    fragments = list(parts)
    return Fragment(
        "(?:" + "|".join(part.full for part in fragments) + ")",
        "(?:" + "|".join(part.begin for part in fragments) + ")",
        "".join(part.firsts for part in fragments),
    )


class Found(NamedTuple):
    """``start``: where undisturbed text ends. ``kind``: what was found there, up to ``end``; empty when
    nothing was, and then what follows ``start`` may be the beginning of something."""

    start: int
    end: int
    kind: str


class Look(NamedTuple):
    """What a scanner looks for. ``ahead`` must follow and is not part of it; the end of the output will do.
    ``last``: found only where nothing else can come of the text."""

    what: Fragment
    ahead: Fragment | None = None
    last: bool = False


class Scanner:
    """Finds the first of several fragments, by kind.

    Every search looks at each character at most a fixed number of times: a fragment's length is bounded,
    and so is what is held back.
    """

    __slots__ = ("_at_end", "_begin", "_full", "_kinds", "_last", "first")

    def __init__(self, looks: Mapping[str, Look]) -> None:
        kinds = list(looks.items())
        self._kinds: Final = {f"k{index}": kind for index, (kind, _) in enumerate(kinds)}
        full, begin, at_end, last = [], [], [], []
        for index, (_, look) in enumerate(kinds):
            group = f"(?P<k{index}>{look.what.full})"
            if look.last:
                last.append(group)
                begin.append(look.what.begin)
                continue
            if look.ahead is None:
                full.append(group)
                begin.append(look.what.begin)
                continue
            full.append(f"{group}(?={look.ahead.full})")
            begin.append(sequence(look.what, look.ahead).begin)
            at_end.append(rf"{group}(?:{look.ahead.begin})?\Z")
        firsts = "".join({character for _, look in kinds for character in look.what.firsts})
        self.first: Final = re.compile(f"[{re.escape(firsts)}]").search
        """Finds a character with which something may begin."""
        self._full: Final = re.compile("|".join(full)).match
        self._begin: Final = re.compile(rf"(?:{'|'.join(begin)})\Z").match
        self._at_end: Final = re.compile("|".join(at_end)).match if at_end else None
        self._last: Final = re.compile("|".join(last)).match if last else None

    def next(self, text: str, start: int) -> Found:
        """The first one from ``start`` on."""
        while (first := self.first(text, start)) is not None:
            start = first.start()
            match = self._full(text, start)
            if match is None:
                if self._begin(text, start) is not None:
                    return Found(start, start, "")
                match = self._last(text, start) if self._last is not None else None
            if match is not None:
                group = match.lastgroup
                assert group is not None
                return Found(start, match.end(group), self._kinds[group])
            start += 1
        return Found(len(text), len(text), "")

    def at_end(self, held: str) -> str:
        """What the text held back is when the output ends here; empty: nothing."""
        match = self._at_end(held) if self._at_end is not None and held else None
        if match is None or match.lastgroup is None:
            return ""
        return self._kinds[match.lastgroup]
