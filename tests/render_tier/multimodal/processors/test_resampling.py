"""The resize gives what the kernel's integer arithmetic gives, compiled and as matrix products."""

import functools
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from render_tier.multimodal.processors.compiled_resampling import compiled_bands
from render_tier.multimodal.processors.kernel_weights import Filter, Window, integer_weights
from render_tier.multimodal.processors.multiplied_resampling import multiplied_bands
from render_tier.multimodal.processors.vector_passes import compiled_passes, passes
from tests.support.absent_modules import without_llvmlite

COMPILED = passes()
CPUINFO = Path("/proc/cpuinfo")

Way = Callable[..., Any]
WAYS: dict[str, Way] = {"products": multiplied_bands}
if COMPILED is not None:
    WAYS["compiled"] = functools.partial(compiled_bands, COMPILED)

both = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())

SIDES = st.integers(1, 90)
FILTERS = st.sampled_from(["bilinear", "bicubic"])


def resized(
    way: Way,
    image: npt.NDArray[np.uint8],
    height: int,
    width: int,
    kind: Filter,
    window: Window | None = None,
    band: int = 32,
) -> np.ndarray:
    bands = way(image, height, width, kind, window or Window(0, 0, width, height), band)
    return np.concatenate([band.copy() for band in bands]).swapaxes(0, 1)


def along(line: npt.NDArray[np.int64], outputs: int, kind: Filter) -> npt.NDArray[np.int64]:
    """One pass of the kernel over the last axis, in integers."""
    inputs = line.shape[-1]
    if inputs == outputs:
        return line
    weights = integer_weights(inputs, outputs, kind, 0, outputs)
    read = weights.first[:, None] + np.arange(weights.values.shape[1])
    sums = (line[..., np.minimum(read, inputs - 1)] * weights.values).sum(-1)
    return np.clip((sums + (1 << (weights.precision - 1))) >> weights.precision, 0, 255)


def in_integers(image: npt.NDArray[np.uint8], height: int, width: int, kind: Filter) -> npt.NDArray[np.int64]:
    wide = along(image.transpose(2, 0, 1).astype(np.int64), width, kind)
    return along(wide.swapaxes(1, 2), height, kind).swapaxes(1, 2)


@both
@settings(deadline=None, max_examples=60)
@given(
    sizes=st.tuples(SIDES, SIDES, SIDES, SIDES),
    kind=FILTERS,
    seed=st.integers(0, 2**32 - 1),
    band=st.integers(1, 40),
    data=st.data(),
)
def test_bands_of_any_window_are_the_kernels(
    way: Way, sizes: tuple[int, int, int, int], kind: Filter, seed: int, band: int, data: st.DataObject
) -> None:
    height, width, new_height, new_width = sizes
    image = np.random.default_rng(seed).integers(0, 2, (height, width, 3), np.uint8) * np.uint8(255)
    expected = in_integers(image, new_height, new_width, kind)
    assert (resized(way, image, new_height, new_width, kind, band=band) == expected).all()
    left, top = data.draw(st.integers(0, new_width - 1)), data.draw(st.integers(0, new_height - 1))
    right, bottom = data.draw(st.integers(left + 1, new_width)), data.draw(st.integers(top + 1, new_height))
    part = resized(
        way, image, new_height, new_width, kind, band=band, window=Window(left, top, right, bottom)
    )
    assert (part == expected[:, top:bottom, left:right]).all()


@both
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [0.3, 0.99, 1.01, 1.9, 3.99, 4.01, 7.9, 8.1, 15.9, 33.0])
def test_the_largest_sums_are_exact(way: Way, kind: Filter, scale: float) -> None:
    """Lines of 255 where an output's weights are positive and 0 elsewhere, and the other way round: the
    largest partial sums that an image can cause, on both sides of where float64 is taken."""
    outputs = 40
    inputs = round(outputs * scale)
    weights = integer_weights(inputs, outputs, kind, 0, outputs)
    lines = np.zeros((outputs, inputs), np.uint8)
    for line, first, count, values in zip(lines, weights.first, weights.count, weights.values, strict=True):
        line[first : first + count] = (values[:count] > 0) * 255
    lines = np.concatenate([lines, 255 - lines])
    image = np.repeat(lines[:, :, None], 3, axis=2)
    assert (
        resized(way, image, len(lines), outputs, kind) == in_integers(image, len(lines), outputs, kind)
    ).all()
    turned = image.swapaxes(0, 1)
    assert (
        resized(way, turned, outputs, len(lines), kind) == in_integers(turned, outputs, len(lines), kind)
    ).all()


@both
def test_a_row_stretched_to_millions_of_pixels_costs_what_is_kept_of_it(way: Way) -> None:
    image = np.arange(3 * 300, dtype=np.uint8).reshape(300, 1, 3)
    part = resized(way, image, 3_000_000, 2, "bicubic", window=Window(0, 1_499_990, 2, 1_500_010))
    assert part.shape == (3, 20, 2)


@both
def test_a_part_of_a_larger_array(way: Way) -> None:
    """Rows that do not follow each other in memory, whose last one ends where the array does."""
    whole = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    image = whole[11:, 23:]
    assert (resized(way, image, 31, 45, "bicubic") == in_integers(image, 31, 45, "bicubic")).all()


@pytest.mark.skipif(not CPUINFO.exists(), reason="the CPU cannot be asked here")
def test_passes_are_compiled_where_the_cpu_can() -> None:
    able = platform.machine() == "x86_64" and "avx2" in CPUINFO.read_text().split()
    assert able == (COMPILED is not None)


def test_without_llvmlite_or_on_another_cpu_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_llvmlite(monkeypatch):
        assert compiled_passes() is None
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert compiled_passes() is None
