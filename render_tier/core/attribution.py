"""Which region each output token belongs to: a ledger of where tokens start in the text.

A token belongs to the region of its first character. Tokens that complete no character of their own (the
first bytes of a character, skipped special tokens) start where the next character does. What is still open
when the output ends is markup.
"""

from __future__ import annotations

from collections import deque

from render_tier.core.events import Tokens
from render_tier.core.table import Region


class Ledger:
    """``add`` a token before its text; ``advance`` over text as it is decided; ``take`` what became certain.

    ``starts``: for every token not yet attributed, its first character's distance from the first undecided
    one. ``tokens``: how many were read, which
    is the machine's to count.
    """

    __slots__ = ("_base", "_count", "_region", "_runs", "_written", "starts", "tokens")

    def __init__(self) -> None:
        self.starts: deque[int] = deque()
        self.tokens = 0
        self._written = 0  # characters written
        self._base = 0  # characters decided
        self._region = Region.MARKUP
        self._count = 0
        self._runs: list[Tokens] = []

    def add(self) -> None:
        self.starts.append(self._written)

    def write(self, length: int) -> None:
        """The tokens added so far have this much more text."""
        self._written += length

    def advance(self, length: int, region: Region) -> None:
        """The next ``length`` characters belong to ``region``."""
        self._base += length
        starts = self.starts
        while starts and starts[0] < self._base:
            starts.popleft()
            self.settle(region)

    def settle(self, region: Region, count: int = 1) -> None:
        """Attribute tokens directly: they have no text that is still open."""
        if region is self._region:
            self._count += count
            return
        if self._count:
            self._runs.append(Tokens(self._region, self._count))
        self._region, self._count = region, count

    def finish(self) -> None:
        if self.starts:
            count = len(self.starts)
            self.starts.clear()
            self.settle(Region.MARKUP, count)
        self._base = self._written

    def take(self) -> list[Tokens]:
        """The runs since the last call."""
        runs, self._runs = self._runs, []
        if self._count:
            runs.append(Tokens(self._region, self._count))
            self._count = 0
        return runs

    def dump(self) -> tuple[int, list[int]]:
        """(undecided characters, gaps between the starts of open tokens, the first from the first
        undecided)."""
        gaps, last = [], self._base
        for start in self.starts:
            gaps.append(start - last)
            last = start
        return self._written - self._base, gaps

    def restore(self, tokens: int, undecided: int, gaps: list[int]) -> None:
        """Take over a count and what `dump` gave. Raises ValueError for what it cannot have given."""
        if undecided < 0 or any(gap < 0 for gap in gaps) or sum(gaps) > undecided:
            raise ValueError("impossible token ledger")
        self.tokens, self._written = tokens, undecided
        start = 0
        for gap in gaps:
            start += gap
            self.starts.append(start)
