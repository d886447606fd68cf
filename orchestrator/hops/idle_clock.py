"""The bound on a peer's silence, for streams of many small pieces.

Moving an ``asyncio.timeout`` on with each piece makes and cancels a timer each time. Here a piece costs one
assignment: one timer per stream looks, once per ``seconds``, how long the peer has been silent, and moves on
by what is left.
"""

from __future__ import annotations

import asyncio
from typing import Self


class IdleClock:
    """Ends ``timeout`` when the peer is silent for ``seconds`` while it is its turn. Until the first
    ``pause`` the timeout's own time counts. A context manager, so that its timer ends with the stream."""

    __slots__ = ("_handle", "_loop", "_seconds", "_since", "_timeout")

    def __init__(self, timeout: asyncio.Timeout, seconds: float) -> None:
        self._timeout = timeout
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def pause(self) -> None:
        """It is our turn: what a slow reader takes is not the peer's time."""
        self._since = None
        if self._handle is None:
            self._timeout.reschedule(None)
            self._handle = self._loop.call_later(self._seconds, self._look)

    def run(self) -> None:
        """It is the peer's turn, from now on."""
        self._since = self._loop.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        left = self._seconds if self._since is None else self._since + self._seconds - now
        if left <= 0:
            self._timeout.reschedule(now)
        else:
            self._handle = self._loop.call_later(left, self._look)
