"""How the C library's heap is used, where that is glibc's; elsewhere nothing here has an effect.

Loading a tokenizer leaves as much free as it keeps, which goes back to the system. What requests take and
free again stays: by default every body above 128 KB comes in fresh pages, and a thread's heap shrinks and
grows with each request, which took a tenth of a long request's time.
"""

from __future__ import annotations

import ctypes
import gc

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8
"""Parameters of mallopt."""
KEPT = 32 * 2**20
"""Free bytes at the end of a heap; glibc takes no more for the size from which memory is mapped."""
STEP = 2**20
"""Bytes by which a heap grows."""


def share_heaps(number: int) -> None:
    """Let all threads use so many heaps together: what one has freed another can take. Call it before there
    are threads."""
    _set(ARENA_MAX, number)


def keep_freed_memory() -> None:
    """From now on. Call it when all that lasts is loaded."""
    _set(MMAP_THRESHOLD, KEPT)
    _set(TRIM_THRESHOLD, KEPT)
    _set(TOP_PAD, STEP)


def return_freed_memory() -> None:
    """Hand freed pages back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
