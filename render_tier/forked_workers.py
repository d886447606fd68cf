"""Workers that gunicorn has just forked end when they are told to.

A forked process has the handlers of gunicorn's master until it sets others, and these put a signal into a
queue that nobody reads there. A SIGTERM of that moment is lost, and a reload, or a stop, waits for that
worker for as long as it waits for any.
"""

from __future__ import annotations

import os
import signal
from typing import Final

STOPS: Final = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)


def keep_stops_for_workers() -> None:
    """Of this process, which will be gunicorn's master: a stop for a worker that comes while that one is
    forked waits until it would end by it."""
    os.register_at_fork(before=_hold, after_in_parent=_let_in, after_in_child=_end_by_stops)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _end_by_stops() -> None:
    for stop in STOPS:
        signal.signal(stop, signal.SIG_DFL)
    _let_in()
