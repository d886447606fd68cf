"""The bound on a peer's silence, for streams of many small pieces.

A timer that is moved on with each piece costs more than the piece. Here a piece costs one assignment: one
timer looks, once per bound, how long the peer has been silent, and moves on by what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleClock:
    """Calls ``on_silent`` once when the peer is silent for too long while it is its turn: for ``first``
    seconds before its first piece, for ``later`` seconds after one."""

    __slots__ = ("_handle", "_later", "_limit", "_loop", "_on_silent", "_since")

    def __init__(self, first: float, later: float, on_silent: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = first
        self._later = later
        self._on_silent = on_silent
        self._since: float | None = self._loop.time()
        self._handle: asyncio.TimerHandle | None = self._loop.call_later(first, self._look)

    def heard(self) -> None:
        """The peer has sent a piece."""
        if self._limit is not self._later:
            self._limit = self._later
            if self._handle is not None:
                self._handle.cancel()
                self._handle = self._loop.call_later(self._later, self._look)
        if self._since is not None:
            self._since = self._loop.time()

    def pause(self) -> None:
        """It is our turn: what a slow reader takes is not the peer's time."""
        self._since = None

    def run(self) -> None:
        """It is the peer's turn, from now on."""
        self._since = self._loop.time()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        now = self._loop.time()
        left = self._limit if self._since is None else self._since + self._limit - now
        if left <= 0:
            self._handle = None
            self._on_silent()
        else:
            self._handle = self._loop.call_later(left, self._look)
