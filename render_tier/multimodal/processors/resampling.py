"""The antialiased resize of torch's uint8 kernel on the CPU, bit for bit, as products of banded matrices.

The kernel (ATen's, and Pillow's before it) resizes along the width, then along the height. An output pixel of
a pass is a sum of uint8 inputs times int16 weights, rounded and clipped to uint8. Here a pass is a float32
matrix product, which is exact, because every number in it is a small multiple of one power of two:

 - weights are q / 2**precision with q an int16; pixels are taken minus 128, so they are from -128 to 127;
 - a partial sum of q * pixel, in whatever order the library adds, is at most 128 * sum|q| in size;
 - float32 holds every integer up to 2**24; an axis for which 128 * sum|q| is above that is computed in
   float64 (shrinking by more than about eight: precision grows as the largest weight gets smaller);
 - `offsets` bring back what the shift by 128 takes away. That addition rounds only when its result is above
   2**24, which with a precision of at most 16 is beyond a pixel's range, and is clipped as without rounding.

A weight matrix is banded: a block of neighbouring outputs reads few inputs more than it has outputs, and only
those rows of the matrix are kept and multiplied. An image is resized band by band, so that a band stays in
the CPU's cache and memory does not grow with the image.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.processors.kernel_weights import Filter, integer_weights

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_EXACT_IN_FLOAT32 = 2**24
_LARGEST_FLOAT32_PRECISION = 16
_CENTRE = 128
_BLOCK_COLUMNS = 32
"""Columns computed by one product; half of it where an output reads more inputs, as more of them are then
multiplied by zero."""
_AHEAD = 64
"""Rows resized along the width at once."""
_SERIAL_PRODUCT = 2**18
"""OpenBLAS starts threads for products above this m * n * k; images are processed side by side instead."""
_KEPT_AXES = 64
"""Resizes of one side whose matrices are kept, under 1 MB each for images of some thousand pixels."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the resized image, which is all that is computed."""

    left: int
    top: int
    right: int
    bottom: int


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
    """(outputs,): turns products with centred pixels into the kernel's sums, with the half for rounding."""


def resized_bands(
    image: npt.NDArray[np.uint8],
    height: int,
    width: int,
    kind: Filter,
    *,
    window: Window | None = None,
    band: int = 32,
) -> Iterator[npt.NDArray[np.float32]]:
    """`image` (height, width, 3) resized to (height, width), as bands of `band` rows from the top down.

    A band is (3, rows, columns) of whole numbers from 0 to 255, and its consumer's to overwrite. With
    `window` the bands are those of that part of the resized image.
    """
    part = window or Window(0, 0, width, height)
    if height == image.shape[0]:
        rows = _Rows(image[: part.bottom], width, kind, part, part.top)
        for top in range(part.top, part.bottom, band):
            yield rows.centred(top, min(top + band, part.bottom)) + np.float32(_CENTRE)
        return
    axis = _axis(image.shape[0], height, kind, part.top, part.bottom, band)
    first, last = axis.blocks[0].first, axis.blocks[-1].last
    rows = _Rows(image[:last], width, kind, part, first)
    for block in axis.blocks:
        source = rows.centred(block.first, block.last).astype(block.matrix.dtype, copy=False)
        result = np.empty((3, block.stop - block.start, source.shape[2]), block.matrix.dtype)
        columns = max(_SERIAL_PRODUCT // block.matrix.size, 1)
        for left in range(0, source.shape[2], columns):
            piece = slice(left, left + columns)
            np.matmul(block.matrix.T, source[:, :, piece], out=result[:, :, piece])
        offsets = axis.offsets[block.start - part.top : block.stop - part.top]
        _round(result, offsets[:, None], 0, 255)
        yield result.astype(np.float32, copy=False)


class _Rows:
    """Rows of an image resized along the width and taken minus 128, asked for from the top down.

    Some are resized ahead, and those that the next band reads again are kept.
    """

    def __init__(
        self, image: npt.NDArray[np.uint8], width: int, kind: Filter, part: Window, first: int
    ) -> None:
        """No row above `first` will be asked for."""
        self._image = image[:, part.left : part.right]
        self._axis: _Axis | None = None
        if width != image.shape[1]:
            step = _BLOCK_COLUMNS if image.shape[1] < 2 * width else _BLOCK_COLUMNS // 2
            self._axis = _axis(image.shape[1], width, kind, part.left, part.right, step)
            self._image = image
        self._part = part
        self._first = self._last = first
        self._kept = np.empty((3, 0, part.right - part.left), np.float32)

    def centred(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """(3, last - first, columns), to be read only."""
        while self._last < last:
            end = min(self._last + _AHEAD, self._image.shape[0])
            pieces = self._kept[:, first - self._first :], self._resized(self._last, end)
            self._kept = np.concatenate(pieces, axis=1)
            self._first, self._last = first, end
        return self._kept[:, first - self._first : last - self._first]

    def _resized(self, first: int, last: int) -> npt.NDArray[np.float32]:
        # Flipping the highest bit of a uint8 and reading it as int8 takes 128 away.
        centred = (self._image[first:last] ^ np.uint8(_CENTRE)).view(np.int8).transpose(2, 0, 1)
        if self._axis is None:
            return np.ascontiguousarray(centred).astype(np.float32)
        offsets = self._axis.offsets
        source = np.ascontiguousarray(centred).astype(offsets.dtype).reshape(-1, centred.shape[2])
        result = np.empty((source.shape[0], offsets.size), offsets.dtype)
        for block in self._axis.blocks:
            inputs = source[:, block.first : block.last]
            outputs = result[:, block.start - self._part.left : block.stop - self._part.left]
            lines = max(_SERIAL_PRODUCT // block.matrix.size, 1)
            for top in range(0, source.shape[0], lines):
                piece = slice(top, top + lines)
                np.matmul(inputs[piece], block.matrix, out=outputs[piece])
        _round(result, offsets - _CENTRE, -_CENTRE, 255 - _CENTRE)
        return result.astype(np.float32, copy=False).reshape(3, last - first, -1)


def _round(sums: Floats, offsets: Floats, low: int, high: int) -> None:
    """The kernel's rounding shift and clip, in place; clipped first, to whole bounds, which is the same."""
    sums += offsets
    np.clip(sums, low, high, out=sums)
    np.floor(sums, out=sums)


@functools.lru_cache(maxsize=_KEPT_AXES)
def _axis(inputs: int, outputs: int, kind: Filter, start: int, stop: int, step: int) -> _Axis:
    """The outputs from `start` to `stop` in blocks of `step`."""
    weights = integer_weights(inputs, outputs, kind, start, stop)
    one = 1 << weights.precision
    size = _CENTRE * int(np.abs(weights.values).sum(axis=1).max())
    exact = size <= _EXACT_IN_FLOAT32 and weights.precision <= _LARGEST_FLOAT32_PRECISION
    dtype = np.float32 if exact else np.float64
    offsets = ((_CENTRE * weights.values.sum(axis=1) + one // 2) / one).astype(dtype)
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
