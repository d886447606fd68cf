"""Giving memory back that loading took for a while: parsing a tokenizer leaves as much free as it keeps."""

from __future__ import annotations

import ctypes
import gc


def return_freed_memory() -> None:
    """Hand freed pages back to the system, where the C library can (glibc); elsewhere nothing happens."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
