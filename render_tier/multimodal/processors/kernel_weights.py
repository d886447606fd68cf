"""The integer weights with which torch's uint8 kernel on the CPU resizes a row of pixels.

Source: ATen/native/cpu/UpSampleKernel.cpp. The order of float64 operations here is the kernel's, so that no
weight rounds differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Filter = Literal["bilinear", "bicubic"]
Doubles = npt.NDArray[np.float64]

_TAPS: dict[Filter, int] = {"bilinear": 2, "bicubic": 4}
_CUBIC = -0.5
"""The coefficient of Keys' cubic that the antialiased kernel uses (the plain bicubic has -0.75)."""
_LARGEST_PRECISION = 22
_CHUNK = 1 << 14
"""Outputs whose weights are computed at once: bounds memory for a row stretched to millions of pixels."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the resized image, which is all that is computed."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True, slots=True)
class IntegerWeights:
    """For the outputs of a window of the resized row."""

    first: npt.NDArray[np.int64]
    """(outputs,): the first input that an output reads."""
    count: npt.NDArray[np.int64]
    """(outputs,): how many it reads."""
    values: npt.NDArray[np.int64]
    """(outputs, most inputs): weights times 2**precision, zero beyond `count`."""
    precision: int


def integer_weights(inputs: int, outputs: int, kind: Filter, start: int, stop: int) -> IntegerWeights:
    """Weights of the outputs from `start` to `stop`, for `inputs` pixels made `outputs`."""
    chunks = range(0, outputs, _CHUNK)
    # The precision is one for the row: its largest weight may be outside the window.
    largest = max(
        float(_weights(inputs, outputs, kind, chunk, min(chunk + _CHUNK, outputs))[2].max())
        for chunk in chunks
    )
    first, count, weights = _weights(inputs, outputs, kind, start, stop)
    precision = _precision(largest)
    scaled = weights * (1 << precision)
    values = np.where(scaled < 0, scaled - 0.5, scaled + 0.5).astype(np.int64)
    return IntegerWeights(first, count, values, precision)


def _weights(
    inputs: int, outputs: int, kind: Filter, start: int, stop: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Doubles]:
    scale = inputs / outputs
    reach = _TAPS[kind] * 0.5 * scale if scale >= 1.0 else _TAPS[kind] * 0.5
    inverse = 1.0 / scale if scale >= 1.0 else 1.0
    centre = scale * (np.arange(start, stop) + 0.5)
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    count = np.minimum((centre + reach + 0.5).astype(np.int64), inputs) - first
    tap = np.arange(int(count.max()))
    weights = _FILTERS[kind](np.abs((tap + first[:, None] - centre[:, None] + 0.5) * inverse))
    weights[tap >= count[:, None]] = 0.0
    total = np.zeros(stop - start)
    for column in weights.T:  # the kernel adds in this order
        total += column
    weights /= total[:, None]
    return first, count, weights


def _triangle(x: Doubles) -> Doubles:
    return np.where(x < 1.0, 1.0 - x, 0.0)


def _cubic(x: Doubles) -> Doubles:
    a = _CUBIC
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


_FILTERS: dict[Filter, Callable[[Doubles], Doubles]] = {"bilinear": _triangle, "bicubic": _cubic}


def _precision(largest: float) -> int:
    """Bits after the point with which the largest weight still is an int16."""
    precision = 0
    while precision < _LARGEST_PRECISION and int(0.5 + largest * (1 << (precision + 1))) < 1 << 15:
        precision += 1
    return precision
