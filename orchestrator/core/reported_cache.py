"""Whether what an engine reports of its cache can be followed and believed, and what it says.

Messages are numbered from 0 in an engine's life. The index is whole when nothing was missed since then, or
since the engine cleared its cache. What was missed may have been removals, so after a gap nothing of it is
kept. An index that is not whole, or whose predictions engines contradict, is still kept up and compared, and
is believed again after a whole window of comparisons in which it was right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from orchestrator.core.exact_index import ExactIndex, LookedUp
from orchestrator.core.kv_events import AllBlocksCleared, KvEvent

Loss = Literal["gap", "restart", "disconnected", "garbled", "drift"]


class ReportedCache:
    """Of one engine. ``window`` comparisons are looked at; with more than ``miss_share`` of them wrong the
    index is not believed."""

    def __init__(self, max_blocks: int, window: int, miss_share: float) -> None:
        self.index = ExactIndex(max_blocks)
        self.losses: dict[Loss, int] = {}
        """How often it was lost or stopped being believed, by reason."""
        self._misses: deque[bool] = deque(maxlen=window)
        self._allowed = miss_share * window
        self._next: int | None = None
        self._live: int | None = None
        """The last number that arrived by itself, not by replay."""
        self._whole = False
        self._doubted = False

    def __repr__(self) -> str:
        return f"<ReportedCache {self.index!r} next={self._next} trusted={self.trusted}>"

    @property
    def trusted(self) -> bool:
        return self._whole and not self._doubted

    def arriving(self, number: int) -> int | None:
        """A message has come; call before ``take``. From which number on messages should be replayed first,
        where that can be had; None when none is missing."""
        if self._live is not None and number <= self._live:
            self.lose("restart")
        self._live = number
        if self._next is None:
            return 0 if number else None
        return self._next if number > self._next else None

    def take(self, number: int, events: Sequence[KvEvent]) -> None:
        """One message, live or replayed. Known ones are passed over, missing ones cost the index. Raises
        ``GarbledEvents``; then ``skip`` it."""
        if self._next is None:
            self._whole = number == 0
        elif number < self._next:
            return
        elif number > self._next:
            self._drop("gap")
        self._next = number + 1
        for event in events:
            self.index.apply(event)
            if isinstance(event, AllBlocksCleared):
                self._whole = True

    def skip(self, number: int) -> None:
        """A message that could not be read: what it said is missing for good."""
        if self._next is None or number >= self._next:
            self._next = number + 1
        self._drop("garbled")

    def nothing_yet(self) -> None:
        """The engine has sent no message in its life."""
        if self._next is None:
            self._next, self._whole = 0, True

    def lose(self, reason: Loss) -> None:
        """The next message may be another engine's."""
        if self._next is not None:
            self._drop(reason)
        self._next = self._live = None
        self._doubted = False
        self._misses.clear()

    def predict(self, prompt: LookedUp) -> int | None:
        """Tokens of the prompt that are cached; None before anything is known."""
        return None if self._next is None else self.index.cached_tokens(prompt)

    def compare(self, prompt: LookedUp, predicted: int, reported: int) -> bool:
        """Whether the prediction of a choice was wrong, given what the engine found when it came to it.

        Far less than predicted: it holds less than it said. Far more than is in the index even now: it holds
        what it did not say. (What others stored in between is in the index now, and no error.) What the
        engine found beyond the IDs that were looked up says nothing.
        """
        reported = min(reported, prompt.tokens)
        missed = reported < predicted / 2 or self.index.cached_tokens(prompt) < reported / 2
        if not (predicted or reported):
            return False
        self._misses.append(missed)
        wrong = sum(self._misses) > self._allowed
        if wrong and self.trusted:
            self._doubted = True
            self._count("drift")
            self._misses.clear()
        elif not wrong and not self.trusted and len(self._misses) == self._misses.maxlen:
            self._whole, self._doubted = True, False
        return missed

    def _drop(self, reason: Loss) -> None:
        self.index.clear()
        self._whole = False
        self._misses.clear()
        self._count(reason)

    def _count(self, reason: Loss) -> None:
        self.losses[reason] = self.losses.get(reason, 0) + 1
