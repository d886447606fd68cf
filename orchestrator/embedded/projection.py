"""Products of a few activation rows with weight matrices, for decode: each row as if it were alone.

Theory of operation. Reading the weights bounds decode, so they must be read once for the whole batch. They
are cut into tiles that fit the cache, and every tile is multiplied with all rows before the next one is read.

A row's numbers must not depend on the rows beside it. A BLAS guarantees nothing of the kind, but one that
sums each output in the same order whatever the number of rows gives the same bits. ``rows_are_independent``
asks the BLAS at hand, with the very tile shapes that the model uses. If it says no, every row is multiplied
by itself, as matrix-vector products, which is slower for more than one sequence.

OpenBLAS gives independent rows when a product is small enough for its kernels that do not pack (at most a
million multiplications), hence ``TILE_PRODUCTS``. One row alone would be a matrix-vector product, with
another order of summation: rows are padded to one of ``WIDTHS``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.embedded.weights import FloatArray
from orchestrator.embedded.workers import Piece, Workers

WIDTHS = (2, 4, 8)
"""Row counts that products are computed with."""

TILE_PRODUCTS = 800_000
"""Bound of the multiplications of one tile with the most rows."""

TILE_ROWS = 64
"""Rows of a tile where ``TILE_PRODUCTS`` allows as many: a few hundred KB, part of a second-level cache."""

PIECES_PER_THREAD = 2
PIECE_BYTES = 512 * 1024
"""Weights that a thread takes at a time, at the least: long against the cost of handing them out. How tiles
are shared out changes no number."""


def padded(rows: int) -> int:
    """The least width for ``rows`` rows."""
    return next(width for width in WIDTHS if width >= rows)


class Projection:
    """Matrices ``(out, in)`` that are applied to the same input, cut into tiles of one shape."""

    def __init__(self, matrices: Sequence[FloatArray]) -> None:
        columns = matrices[0].shape[1]
        common = math.gcd(*(len(matrix) for matrix in matrices))
        bound = min(TILE_ROWS, TILE_PRODUCTS // (columns * WIDTHS[-1]))
        self.rows = max((rows for rows in range(1, bound + 1) if common % rows == 0), default=1)
        self._matrices = [matrix.reshape(-1, self.rows, columns) for matrix in matrices]
        self.tiles = sum(map(len, self._matrices))

    def apply(self, x: FloatArray, workers: Workers, *, together: bool) -> FloatArray:
        """``(tiles, rows of x, rows of a tile)``: the product in pieces, see ``joined``."""
        out = np.empty((self.tiles, len(x), self.rows), dtype=np.float32)
        share = -(-self.tiles // (PIECES_PER_THREAD * workers.threads))
        step = max(share, PIECE_BYTES // (self.rows * x.shape[1] * 4))
        product = multiply_together if together else multiply_apart
        pieces: list[Piece] = []
        first = 0
        for tiles in self._matrices:
            for start in range(0, len(tiles), step):
                part = tiles[start : start + step]
                pieces.append(functools.partial(product, part, x, out[first : first + len(part)]))
                first += len(part)
        workers.run(pieces)
        return out

    def sample(self) -> FloatArray:
        """One tile."""
        tile: FloatArray = self._matrices[0][0]
        return tile


def joined(product: FloatArray) -> FloatArray:
    """``(tiles, rows of x, rows of a tile)`` as ``(rows of x, out)``."""
    return np.ascontiguousarray(product.transpose(1, 0, 2)).reshape(product.shape[1], -1)


def multiply_together(tiles: FloatArray, x: FloatArray, out: FloatArray) -> None:
    np.matmul(x, tiles.transpose(0, 2, 1), out=out)


def multiply_apart(tiles: FloatArray, x: FloatArray, out: FloatArray) -> None:
    np.matmul(tiles[:, None], x[None, :, :, None], out=out[..., None])


def rows_are_independent(projections: Iterable[Projection]) -> bool:
    """Whether ``multiply_together`` gives a row the same bits in every width and place, for these tiles."""
    draw = np.random.default_rng(0)
    shapes = {projection.sample().shape: projection.sample() for projection in projections}
    for (height, columns), tile in shapes.items():
        most = WIDTHS[-1]
        x = draw.standard_normal((most, columns), dtype=np.float32)
        expected = np.empty((1, most, height), dtype=np.float32)
        multiply_together(tile[None], x, expected)
        for width in WIDTHS:
            for first in range(most):
                rows = np.arange(first, first + width) % most
                out = np.empty((1, width, height), dtype=np.float32)
                multiply_together(tile[None], x[rows], out)
                if not np.array_equal(out, expected[:, rows]):
                    return False
    return True
