"""The budget of the template that renders on this thread: CPU time, size of each value and of all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TOTAL = 16
"""All values together may be this many times as large as any one."""


class BudgetExceeded(Exception):
    """A template ran longer, or built more, than the operator allows."""


class _Meter(threading.local):
    deadline: float = 0.0
    """In CPU time of the thread."""
    earliest: float = 0.0
    """Before this moment the deadline cannot have come: a thread takes no more CPU time than time passes."""
    max_chars: int = 0
    built: int = 0


METER = _Meter()


def check_time() -> str:
    """Called by compiled templates; the empty string so that it may stand in an expression."""
    # The thread's own clock is a system call, time that passes is not.
    if time.monotonic() > METER.earliest and time.thread_time() > METER.deadline:
        raise BudgetExceeded("the chat template took too long to render")
    return ""


def check_size(size: int) -> None:
    """Before a value of ``size`` characters is built."""
    meter = METER
    built = meter.built + size
    if size > meter.max_chars or built > meter.max_chars * TOTAL:
        raise BudgetExceeded("the chat template builds a text or list that is too large")
    meter.built = built


@contextmanager
def with_budget(seconds: float, max_chars: int) -> Iterator[None]:
    """Whatever templates compile (constant expressions are evaluated) or render on this thread is metered."""
    METER.earliest = time.monotonic() + seconds
    METER.deadline = time.thread_time() + seconds
    METER.max_chars = max_chars
    METER.built = 0
    try:
        yield
    finally:
        METER.deadline = METER.earliest = 0.0
