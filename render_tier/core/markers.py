"""A set of markers to be found in text that comes in pieces, and what of it must be held back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final


class Markers:
    """Finds the markers; the first in the text wins, and none is part of another, so that which one it is
    does not depend on how much of the text has come.

    ``search``: a compiled pattern's method, None when there are no markers. ``firsts``: the characters with
    which a marker begins. ``width``: the most characters that `held` asks for.
    """

    __slots__ = ("_first", "_prefixes", "firsts", "search", "width")

    def __init__(self, markers: Iterable[str]) -> None:
        """Raises ValueError for a marker that is empty or part of another."""
        texts = sorted(markers)
        for marker in texts:
            if not marker or any(other != marker and marker in other for other in texts):
                raise ValueError(f"marker {marker!r} is empty or part of another")
        self.search: Final = re.compile("|".join(map(re.escape, texts))).search if texts else None
        self._prefixes: Final = frozenset(text[:n] for text in texts for n in range(1, len(text)))
        self.width: Final = max((len(text) - 1 for text in texts), default=0)
        self.firsts: Final = frozenset(text[0] for text in texts)
        pattern = "|".join(map(re.escape, sorted(self.firsts)))
        self._first: Final = re.compile(pattern).search if texts else None

    def held(self, text: str) -> int:
        """How many characters at the end of ``text`` may be the beginning of a marker."""
        if self._first is None:
            return 0
        length = len(text)
        start = max(0, length - self.width)
        while (found := self._first(text, start)) is not None:
            start = found.start()
            if text[start:] in self._prefixes:
                return length - start
            start += 1
        return 0
