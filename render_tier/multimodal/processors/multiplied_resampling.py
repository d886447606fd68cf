"""The antialiased resize of torch's uint8 kernel on the CPU, bit for bit, as products of banded matrices.

The kernel (ATen's, and Pillow's before it) resizes along the width, then along the height. An output pixel of
a pass is a sum of uint8 inputs times int16 weights, rounded and clipped to uint8. Here a pass is a float32
matrix product, which is exact, because every number in it is a small multiple of one power of two:

 - weights are q / 2**precision with q an int16; pixels are taken minus 128, so they are from -128 to 127;
 - a partial sum of q * pixel, in whatever order the library adds, is at most 128 * sum|q| in size;
 - float32 holds every integer up to 2**24; an axis for which 128 * sum|q| is above that is computed in
   float64 (a cubic that shrinks by four or more: precision grows as the largest weight gets smaller). A
   triangle of precision 17 can be above it by 128 * (sum(q) - 2**17), which is little, as each q is rounded
   by a half at most; but then nearly all pixels are -128, and a sum wrong by less than that still is rounded
   to the 0 that the kernel gives;
 - `offsets` make of it the kernel's sum minus 128, with the half for rounding. That addition rounds only when
   its result is above 2**24, which with a precision of at most 17 is beyond a pixel minus 128, and is clipped
   as without rounding.

A weight matrix is banded: a block of neighbouring outputs reads few inputs more than it has outputs, and only
those rows of the matrix are kept and multiplied. An image is resized band by band, so that memory does not
grow with it, and along the width a few blocks at a time, so that what they read stays in the CPU's cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.processors.kernel_weights import Filter, Window, integer_weights
from render_tier.multimodal.processors.rows_ahead import AHEAD, RowsAhead

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_EXACT_IN_FLOAT32 = 2**24
_LARGEST_FLOAT32_PRECISION = 17
_CENTRE = 128
_BLOCK_COLUMNS = 32
"""Columns computed by one product; half of it where an output reads more inputs, as more of them are then
multiplied by zero."""
_BLOCK_ROWS = 16
"""Most rows computed by one product."""
_TILE = 256
"""Columns that are made floats at once, unless a product reads more."""
_SERIAL_PRODUCT = 2**18
"""OpenBLAS starts threads for products above this m * n * k; images are processed side by side instead."""
_KEPT_AXES = 32
"""Resizes of one side whose matrices are kept."""
_LONGEST_KEPT = 4096
"""Pixels before and after; bounds what is kept of one to about 1 MB."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Weights of the outputs from `start` to `stop`, which read the inputs from `first` to `last`."""

    start: int
    stop: int
    first: int
    last: int
    matrix: Floats
    """(inputs, outputs)"""


@dataclass(frozen=True, slots=True)
class _Axis:
    blocks: tuple[_Block, ...]
    offsets: Floats
    """(outputs,): turns products with centred pixels into the kernel's sums minus 128, with the half for
    rounding."""

    def tiles(self) -> Iterator[tuple[_Block, ...]]:
        """Neighbouring blocks that read few inputs together."""
        begin = 0
        for end in range(1, len(self.blocks) + 1):
            if end == len(self.blocks) or self.blocks[end].last - self.blocks[begin].first > _TILE:
                yield self.blocks[begin:end]
                begin = end


def multiplied_bands(
    image: npt.NDArray[np.uint8], height: int, width: int, kind: Filter, part: Window, band: int
) -> Iterator[npt.NDArray[np.float32]]:
    """See `resampling.resized_bands`."""
    if height == image.shape[0]:
        rows = _Rows(image[: part.bottom], width, kind, part, part.top, band)
        for top in range(part.top, part.bottom, band):
            yield rows.centred(top, min(top + band, part.bottom)) + np.float32(_CENTRE)
        return
    step = max(rows for rows in range(1, min(band, _BLOCK_ROWS) + 1) if band % rows == 0)
    axis = _axis(image.shape[0], height, kind, part.top, part.bottom, step)
    first, last = axis.blocks[0].first, axis.blocks[-1].last
    deepest = max(block.last - block.first for block in axis.blocks)
    rows = _Rows(image[:last], width, kind, part, first, deepest)
    dtype = axis.offsets.dtype
    buffer = np.empty((band, 3 * (part.right - part.left)), dtype)
    of_band = band // step
    for begin in range(0, len(axis.blocks), of_band):
        blocks = axis.blocks[begin : begin + of_band]
        top = blocks[0].start
        for block in blocks:
            source = rows.centred(block.first, block.last).astype(dtype, copy=False)
            source = source.reshape(block.last - block.first, -1)
            sums = buffer[block.start - top : block.stop - top]
            columns = max(_SERIAL_PRODUCT // block.matrix.size, 1)
            for left in range(0, source.shape[1], columns):
                piece = slice(left, left + columns)
                np.matmul(block.matrix.T, source[:, piece], out=sums[:, piece])
            offsets = axis.offsets[block.start - part.top : block.stop - part.top]
            _round(sums, offsets[:, None])
            sums += _CENTRE
        result = buffer[: blocks[-1].stop - top]
        yield result.astype(np.float32, copy=False).reshape(len(result), 3, -1)


class _Rows:
    """Rows of an image resized along the width and taken minus 128."""

    def __init__(
        self,
        image: npt.NDArray[np.uint8],
        width: int,
        kind: Filter,
        part: Window,
        first: int,
        deepest: int,
    ) -> None:
        """No row above `first` will be asked for, and no more than `deepest` at a time."""
        self._image = image
        self._axis: _Axis | None = None
        self._part = part
        columns = part.right - part.left
        self._ahead = RowsAhead(self._resize, first, len(image), deepest, columns, np.float32)
        if width == image.shape[1]:
            self._image = image[:, part.left : part.right]
        else:
            step = _BLOCK_COLUMNS if 2 * image.shape[1] < 3 * width else _BLOCK_COLUMNS // 2
            self._axis = _axis(image.shape[1], width, kind, part.left, part.right, step)
            widest = max(tile[-1].last - tile[0].first for tile in self._axis.tiles())
            self._source = np.empty(3 * AHEAD * widest, self._axis.offsets.dtype)
        self._planes = np.empty((AHEAD, 3, self._image.shape[1]), np.uint8)

    def centred(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """(last - first, 3, columns), to be read only, until the next call."""
        return self._ahead.read(first, last)

    def _resize(self, first: int, last: int, rows: npt.NDArray[np.float32]) -> None:
        planes = self._planes[: last - first]
        planes[:] = self._image[first:last].transpose(0, 2, 1)
        planes ^= np.uint8(_CENTRE)  # read as an int8, that is the pixel minus 128
        if self._axis is None:
            rows[:] = planes.view(np.int8)
            return
        lines = planes.view(np.int8).reshape(3 * len(planes), -1)
        result = rows.reshape(len(lines), -1)
        exact = self._source.dtype == result.dtype
        sums = result if exact else np.empty(result.shape, self._source.dtype)
        for tile in self._axis.tiles():
            left, right = tile[0].first, tile[-1].last
            source = self._source[: len(lines) * (right - left)].reshape(len(lines), -1)
            source[:] = lines[:, left:right]
            for block in tile:
                read = source[:, block.first - left : block.last - left]
                outputs = sums[:, block.start - self._part.left : block.stop - self._part.left]
                height = max(_SERIAL_PRODUCT // block.matrix.size, 1)
                for top in range(0, len(lines), height):
                    piece = slice(top, top + height)
                    np.matmul(read[piece], block.matrix, out=outputs[piece])
        _round(sums, self._axis.offsets)
        if not exact:
            result[:] = sums


def _round(sums: Floats, offsets: Floats) -> None:
    """The kernel's rounding shift and clip, in place; clipped first, to whole bounds, which is the same."""
    sums += offsets
    np.clip(sums, -_CENTRE, 255 - _CENTRE, out=sums)
    np.floor(sums, out=sums)


def _axis(inputs: int, outputs: int, kind: Filter, start: int, stop: int, step: int) -> _Axis:
    """The outputs from `start` to `stop` in blocks of `step`."""
    make = _kept_axis if max(inputs, outputs) <= _LONGEST_KEPT else _kept_axis.__wrapped__
    return make(inputs, outputs, kind, start, stop, step)


@functools.lru_cache(maxsize=_KEPT_AXES)
def _kept_axis(inputs: int, outputs: int, kind: Filter, start: int, stop: int, step: int) -> _Axis:
    weights = integer_weights(inputs, outputs, kind, start, stop)
    one = 1 << weights.precision
    small = _CENTRE * int(np.abs(weights.values).sum(axis=1).max()) <= _EXACT_IN_FLOAT32
    exact = weights.precision <= _LARGEST_FLOAT32_PRECISION and (small or kind == "bilinear")
    dtype = np.float32 if exact else np.float64
    offsets = ((_CENTRE * (weights.values.sum(axis=1) - one) + one // 2) / one).astype(dtype)
    ends = weights.first + weights.count
    taps = np.arange(weights.values.shape[1])
    blocks = []
    for begin in range(0, stop - start, step):
        rows = slice(begin, min(begin + step, stop - start))
        first, last = int(weights.first[rows].min()), int(ends[rows].max())
        used = taps < weights.count[rows, None]
        read = (weights.first[rows, None] - first + taps)[used]
        matrix = np.zeros((last - first, used.shape[0]), dtype)
        matrix[read, np.nonzero(used)[0]] = weights.values[rows][used] / one
        blocks.append(_Block(start + rows.start, start + rows.stop, first, last, matrix))
    return _Axis(tuple(blocks), offsets)
