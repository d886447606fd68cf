"""Stop strings: found wherever they are, never shown by half.

Knuth-Morris-Pratt, one automaton per string, so each character is looked at once and the whole state is one
number per string. What must be held back is the longest part of the text that may still become a stop string,
and that is itself the beginning of one. The string that completes first wins; of several that complete with
the same character, the first in the list does (vLLM's rule for one token at a time, here for every chunking).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final


def _failures(pattern: str) -> list[int]:
    """KMP's table: for each prefix length, the longest shorter prefix that is also its suffix."""
    table = [0] * (len(pattern) + 1)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length]
        if pattern[index] == pattern[length]:
            length += 1
        table[index + 1] = length
    return table


class StopTable:
    """The automata of one request's stop strings. Immutable; shared by the streams of a request."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty")
        self.stops: Final = tuple(stops)
        self.failures: Final = tuple(_failures(stop) for stop in stops)
        self.first: Final = re.compile("[" + "".join(re.escape(stop[0]) for stop in stops) + "]")


class StopMatcher:
    """Follows one text. ``progress``: for each stop string, how much of it the text ends with."""

    __slots__ = ("_table", "progress")

    def __init__(self, table: StopTable, progress: Sequence[int] | None = None) -> None:
        self._table = table
        self.progress = [0] * len(table.stops) if progress is None else list(progress)
        if len(self.progress) != len(table.stops) or not all(
            0 <= length < len(stop) for length, stop in zip(self.progress, table.stops, strict=True)
        ):
            raise ValueError("impossible stop-string progress")

    @property
    def held(self) -> int:
        """How many characters at the end of the text may still become part of a stop string."""
        return max(self.progress, default=0)

    def feed(self, text: str, *, armed: bool = True) -> tuple[int, str] | None:
        """Read more text. Returns (index after the match, stop string), or None. Not armed (min_tokens), a
        string that completes here does not count, but its parts go on counting."""
        table, progress = self._table, self.progress
        stops, failures = table.stops, table.failures
        index, length = 0, len(text)
        idle = not any(progress)
        while index < length:
            if idle:
                found = table.first.search(text, index)
                if found is None:
                    return None
                index = found.start()
            character = text[index]
            index += 1
            matched: str | None = None
            idle = True
            for which, stop in enumerate(stops):
                failure = failures[which]
                at = progress[which]
                while at and stop[at] != character:
                    at = failure[at]
                if stop[at] == character:
                    at += 1
                if at == len(stop):
                    if armed and matched is None:
                        matched = stop
                    at = failure[at]
                progress[which] = at
                if at:
                    idle = False
            if matched is not None:
                return index, matched
        return None
