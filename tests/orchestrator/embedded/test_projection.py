"""Products of a batch: the right numbers, and a check that finds a BLAS whose rows depend on each other."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.embedded import projection
from orchestrator.embedded.projection import (
    TILE_PRODUCTS,
    WIDTHS,
    Projection,
    joined,
    multiply_together,
    padded,
    rows_are_independent,
)
from orchestrator.embedded.weights import FloatArray
from orchestrator.embedded.workers import Workers

SHAPES = [((6, 8),), ((576, 576), (192, 576), (192, 576)), ((96, 1536),), ((7, 5), (14, 5)), ((64, 9000),)]


def matrices(shapes: tuple[tuple[int, int], ...]) -> list[FloatArray]:
    draw = np.random.default_rng(3)
    return [draw.standard_normal(shape, dtype=np.float32) for shape in shapes]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_projection_is_the_product_with_all_its_matrices(
    shapes: tuple[tuple[int, int], ...], rows: int, together: bool
) -> None:
    parts = matrices(shapes)
    x = np.random.default_rng(4).standard_normal((rows, shapes[0][1]), dtype=np.float32)
    got = joined(Projection(parts).apply(x, Workers(2), together=together))
    expected = x.astype(np.float64) @ np.concatenate(parts).T.astype(np.float64)
    assert got.flags.c_contiguous
    assert np.abs(got - expected).max() < 1e-3


@pytest.mark.parametrize("shapes", SHAPES)
def test_tiles_are_of_one_shape_and_within_the_bound(shapes: tuple[tuple[int, int], ...]) -> None:
    made = Projection(matrices(shapes))
    assert made.rows * made.tiles == sum(rows for rows, _ in shapes)
    assert made.rows * shapes[0][1] * WIDTHS[-1] <= TILE_PRODUCTS


def test_rows_are_padded_to_the_next_width() -> None:
    assert [padded(rows) for rows in range(1, 9)] == [2, 2, 4, 4, 8, 8, 8, 8]


def test_the_check_accepts_sums_in_a_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def exact(tiles: FloatArray, x: FloatArray, out: FloatArray) -> None:
        out[:] = (x[None, :, None, :] * tiles[:, None]).cumsum(axis=-1, dtype=np.float32)[..., -1]

    monkeypatch.setattr(projection, "multiply_together", exact)
    assert rows_are_independent([Projection(matrices(((32, 48),)))])


@pytest.mark.parametrize("kind", ["width", "place"])
def test_the_check_finds_rows_that_depend_on_width_or_place(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A BLAS that sums the other way round in products of four rows, or in every third row."""

    def fickle(tiles: FloatArray, x: FloatArray, out: FloatArray) -> None:
        multiply_together(tiles, x, out)
        backwards = np.empty_like(out)
        multiply_together(tiles[..., ::-1].copy(), x[:, ::-1].copy(), backwards)
        if kind == "width":
            out[:] = backwards if len(x) == 4 else out
        else:
            out[:, 2::3] = backwards[:, 2::3]

    monkeypatch.setattr(projection, "multiply_together", fickle)
    assert not rows_are_independent([Projection(matrices(((64, 576),)))])
