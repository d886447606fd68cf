"""Threads that share out the pieces of one computation.

Numpy releases the interpreter lock inside products and long element-wise operations, so pieces run in
parallel. Whoever is free takes the next piece: a thread that the operating system holds up delays one piece,
not half of the work. What a piece computes must not depend on who takes it or when.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

Piece = Callable[[], Any]


class _Round:
    """The pieces of one ``run``."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = deque(pieces)
        self._left = len(self._pieces)
        self._counting = threading.Lock()
        self._finished = threading.Lock()
        self._finished.acquire()
        self._error: BaseException | None = None

    def work(self) -> None:
        """Compute pieces until none is left to take."""
        while True:
            try:
                piece = self._pieces.popleft()
            except IndexError:
                return
            try:
                piece()
            except BaseException as error:
                self._error = error
            with self._counting:
                self._left -= 1
                if not self._left:
                    self._finished.release()

    def wait(self) -> None:
        """Until every piece is computed. Raises what a piece raised."""
        self._finished.acquire()
        if self._error is not None:
            raise self._error


class Workers:
    """``threads`` threads, the caller of ``run`` being one of them. One ``run`` at a time. The others end
    when the object is no more."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._rounds: SimpleQueue[_Round | None] = SimpleQueue()
        for number in range(1, threads):
            name = f"model-{number}"
            threading.Thread(target=_help, args=(self._rounds,), name=name, daemon=True).start()
        weakref.finalize(self, _dismiss, self._rounds, threads - 1)

    def run(self, pieces: list[Piece]) -> None:
        """Compute all pieces, in any order. Raises what a piece raised, after the others have ended."""
        if self.threads == 1 or len(pieces) <= 1:
            for piece in pieces:
                piece()
            return
        computation = _Round(pieces)
        for _ in range(min(self.threads, len(pieces)) - 1):
            self._rounds.put(computation)
        computation.work()
        computation.wait()


def _help(rounds: SimpleQueue[_Round | None]) -> None:
    while (computation := rounds.get()) is not None:
        computation.work()


def _dismiss(rounds: SimpleQueue[_Round | None], helpers: int) -> None:
    for _ in range(helpers):
        rounds.put(None)
