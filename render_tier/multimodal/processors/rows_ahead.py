"""Rows of an image resized along the width, asked for from the top down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

AHEAD = 64
"""Most rows resized along the width at once."""

Number = TypeVar("Number", np.uint8, np.float32)


class RowsAhead(Generic[Number]):
    """Some are resized ahead, and those that the next band reads again are kept. The work is done in an array
    that is made once: fresh ones of this size come from the system, whose clearing of them costs as much."""

    def __init__(
        self,
        resize: Callable[[int, int, npt.NDArray[Number]], None],
        first: int,
        end: int,
        deepest: int,
        columns: int,
        dtype: type[Number],
        *,
        room: int = 0,
    ) -> None:
        """``resize(first, last, rows)`` writes some rows. No row above ``first`` or from ``end`` on will be
        asked for, and no more than ``deepest`` at a time. There is memory of ``room`` rows behind these."""
        self._resize: Callable[[int, int, npt.NDArray[Number]], None] = resize
        self._end = end
        self._kept: npt.NDArray[Number] = np.empty((deepest + 2 * AHEAD + room, 3, columns), dtype)
        self._first = self._last = first

    def read(self, first: int, last: int) -> npt.NDArray[Number]:
        """(last - first, 3, columns), to be read only, until the next call."""
        if first - self._first > AHEAD:
            used = self._kept[first - self._first : self._last - self._first]
            self._kept[: len(used)] = used.copy()
            self._first = first
        while self._last < last:
            end = min(self._last + AHEAD, self._end)
            self._resize(self._last, end, self._kept[self._last - self._first : end - self._first])
            self._last = end
        return self._kept[first - self._first : last - self._first]
