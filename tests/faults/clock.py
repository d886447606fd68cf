"""An event loop whose time passes by its own turns, so that no time-out depends on the speed of the machine.

Clients, orchestrator and tiers of a test share one loop. While it waits for its next timer and nothing
happens, its clock goes as clocks do; a turn in which there is something to do counts for no more than
``TURN`` seconds, whatever it takes. So a time-out ends a call that nobody answers, and never one whose answer
is only slow to be computed.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any, Final

TURN: Final = 0.001


class _Clock(selectors.DefaultSelector):
    """Keeps the time of its loop: it sees when the loop begins to wait, and when it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._began_work = time.monotonic()

    def select(self, timeout: float | None = None) -> Any:
        began = time.monotonic()
        self.now += min(began - self._began_work, TURN)
        ready = super().select(timeout)
        self._began_work = time.monotonic()
        # What is ready came from this loop itself, and was there when the wait began.
        longest = TURN if ready or timeout is None else max(0.0, timeout)
        self.now += min(self._began_work - began, longest)
        return ready


class PatientLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now
