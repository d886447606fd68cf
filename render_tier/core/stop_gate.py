"""The stop strings of scope "all": output waits here while it may be part of one.

They are matched in the whole output, before it has any meaning, as the coupled server does. A marker token
goes on whole or not at all, unless a stop string cuts it: what is left of it is ordinary text.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from render_tier.core.attribution import Ledger
from render_tier.core.options import MachineOptions
from render_tier.core.outlet import Outlet
from render_tier.core.stops import StopMatcher, StopTable
from render_tier.core.walk import TEXT, Walk


class GateState(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A `StopGate` between two calls."""

    progress: list[int]
    queue: list[tuple[int, str]]


class StopGate:
    """What passes goes on to the walk; a match is reported to the outlet."""

    def __init__(
        self, stops: StopTable, options: MachineOptions, walk: Walk, outlet: Outlet, ledger: Ledger
    ) -> None:
        self.may_stop: Final = stops.first.search
        """Finds a character with which a stop string begins."""
        self._stops = stops
        self._options = options
        self._walk = walk
        self._outlet = outlet
        self._ledger = ledger
        self._matcher = StopMatcher(stops)
        self._queue: deque[tuple[int, str]] = deque()  # pieces that may be part of a stop string
        self._queued = 0  # characters in the queue

    @property
    def idle(self) -> bool:
        """Nothing waits, and no stop string has begun."""
        return not self._queue and not self._matcher.held

    def read(self, token_id: int, text: str) -> None:
        """As `Walk.read`."""
        before = self._queued
        self._queue.append((token_id, text))
        self._queued += len(text)
        match = self._matcher.feed(text, armed=self._ledger.tokens > self._options.min_tokens)
        if match is None:
            self._let_go(self._queued - self._matcher.held)
            return
        end, stop = match
        cut = before + end - (0 if self._options.include_stop else len(stop))
        self._let_go(cut, split=True)
        self._queue.clear()
        self._queued = 0
        self._outlet.stop(stop)

    def finish(self) -> None:
        """The output ends here: what waits is no stop string."""
        while self._queue and self._outlet.stopped is None:
            self._walk.read(*self._queue.popleft())

    def _let_go(self, length: int, *, split: bool = False) -> None:
        """Let the first ``length`` characters go on; ``split``: also out of a marker token."""
        queue = self._queue
        while queue and length > 0:
            token_id, text = queue[0]
            if len(text) <= length:
                queue.popleft()
                self._queued -= len(text)
                length -= len(text)
                self._walk.read(token_id, text)
                continue
            if token_id == TEXT or split:
                queue[0] = (TEXT, text[length:])
                self._queued -= length
                self._walk.read(TEXT, text[:length])
            return

    def dump(self) -> GateState:
        return GateState(self._matcher.progress, list(self._queue))

    def restore(self, saved: GateState) -> None:
        """Take over what `dump` gave. Raises ValueError for what it cannot have given."""
        self._matcher = StopMatcher(self._stops, saved.progress)
        self._queue = deque(saved.queue)
        self._queued = sum(len(text) for _, text in saved.queue)
