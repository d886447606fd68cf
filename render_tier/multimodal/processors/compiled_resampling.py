"""The antialiased resize of torch's uint8 kernel by compiled passes (`vector_passes`), band by band.

The numbers are the kernel's own integers. What a pass reads beyond an output's inputs has weights of 0: the
rows of pixels are copied to where there is room behind them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.processors.kernel_weights import Filter, Window, integer_weights
from render_tier.multimodal.processors.pass_code import BEYOND, COLUMNS, LAYOUT, ROW_BYTES, TAPS
from render_tier.multimodal.processors.rows_ahead import AHEAD, RowsAhead
from render_tier.multimodal.processors.vector_passes import Passes

Bytes = npt.NDArray[np.uint8]

_LINE = 64
"""Bytes of a cache line."""
_KEPT_AXES = 32
"""Resizes of one side whose weights are kept."""
_LONGEST_KEPT = 4096
"""Pixels before and after; bounds what is kept of one to about 400 KB."""


@dataclass(frozen=True, slots=True)
class _Axis:
    first: npt.NDArray[np.int64]
    """(outputs,): the first input that an output reads."""
    last: npt.NDArray[np.int64]
    """(outputs,): the one after its last."""
    weights: npt.NDArray[np.int16]
    """(outputs, inputs), with as many zeros behind an output's own as make it a whole number of steps."""
    precision: int


def compiled_bands(
    passes: Passes, image: Bytes, height: int, width: int, kind: Filter, part: Window, band: int
) -> Iterator[Bytes]:
    """See `resampling.resized_bands`."""
    columns = part.right - part.left
    if height == image.shape[0]:
        rows = _rows(passes, image[: part.bottom], width, kind, part, part.top, band, 0)
        for top in range(part.top, part.bottom, band):
            yield rows.read(top, min(top + band, part.bottom))[:, :, :columns].copy()
        return
    axis = _axis(image.shape[0], height, kind, part.top, part.bottom, 2)
    outputs = len(axis.first)
    starts = range(0, outputs, band)
    ends = np.array([axis.last[start : start + band].max() for start in starts])
    deepest = int((ends - axis.first[::band]).max())
    room = axis.weights.shape[1]
    rows = _rows(passes, image[: ends[-1]], width, kind, part, int(axis.first[0]), deepest, room)
    result = np.empty(3 * band * columns + ROW_BYTES, np.uint8)
    for start, last in zip(starts, ends, strict=True):
        stop = min(start + band, outputs)
        first = int(axis.first[start])
        source = rows.read(first, int(last))
        offsets = (axis.first[start:stop] - first) * source.strides[0]
        weights = axis.weights[start:stop]
        passes.down(
            source.ctypes.data,
            offsets.ctypes.data,
            weights.ctypes.data,
            result.ctypes.data,
            stop - start,
            3,
            columns,
            weights.shape[1] // 2,
            source.strides[0],
            source.strides[1],
            axis.precision,
        )
        yield result[: 3 * (stop - start) * columns].reshape(-1, 3, columns)


def _rows(
    passes: Passes,
    image: Bytes,
    width: int,
    kind: Filter,
    part: Window,
    first: int,
    deepest: int,
    room: int,
) -> RowsAhead[np.uint8]:
    """Rows of planes of the window's columns; each column and row has room behind it."""
    columns = part.right - part.left
    across = _up(columns, ROW_BYTES)
    if width == image.shape[1]:
        cut = image[:, part.left : part.right].transpose(0, 2, 1)

        def turn(begin: int, end: int, rows: Bytes) -> None:
            rows[:, :, :columns] = cut[begin:end]

        return RowsAhead(turn, first, len(image), deepest, across, np.uint8, room=room)
    axis = _axis(image.shape[1], width, kind, part.left, part.right, TAPS)
    left, right = int(axis.first[0]), int(axis.last.max())
    # A line more where rows would lie at the same places of the first-level cache.
    stride = _up(3 * (right - left + axis.weights.shape[1]) + BEYOND, _LINE) | _LINE
    pixels = np.zeros((AHEAD, stride), np.uint8)
    used = 3 * (right - left)
    outputs = _up(columns, COLUMNS)
    offsets = np.zeros(outputs, np.int64)
    offsets[:columns] = (axis.first - left) * 3
    weights = _of_vectors(axis, outputs)

    def resize(begin: int, end: int, rows: Bytes) -> None:
        pixels[: end - begin, :used].reshape(end - begin, -1, 3)[:] = image[begin:end, left:right]
        passes.across(
            pixels.ctypes.data,
            offsets.ctypes.data,
            weights.ctypes.data,
            rows.ctypes.data,
            end - begin,
            outputs // COLUMNS,
            weights.shape[1],
            stride,
            rows.strides[0],
            rows.strides[1],
            axis.precision,
        )

    return RowsAhead(resize, first, len(image), deepest, across, np.uint8, room=room)


def _of_vectors(axis: _Axis, outputs: int) -> npt.NDArray[np.int16]:
    """(outputs, vectors, lanes), those beyond the axis' own being zero."""
    steps = axis.weights.reshape(len(axis.weights), -1, TAPS)
    vectors = np.zeros((outputs, steps.shape[1], len(LAYOUT)), np.int16)
    np.take(steps, LAYOUT, axis=2, out=vectors[: len(steps)])
    return vectors


def _axis(inputs: int, outputs: int, kind: Filter, start: int, stop: int, step: int) -> _Axis:
    """The outputs from `start` to `stop`, whose inputs are taken `step` at a time."""
    make = _kept_axis if max(inputs, outputs) <= _LONGEST_KEPT else _kept_axis.__wrapped__
    return make(inputs, outputs, kind, start, stop, step)


@functools.lru_cache(maxsize=_KEPT_AXES)
def _kept_axis(inputs: int, outputs: int, kind: Filter, start: int, stop: int, step: int) -> _Axis:
    found = integer_weights(inputs, outputs, kind, start, stop)
    taps = found.values.shape[1]
    weights = np.zeros((stop - start, _up(taps, step)), np.int16)
    weights[:, :taps] = found.values
    return _Axis(found.first, found.first + found.count, weights, found.precision)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
