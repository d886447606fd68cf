"""Which grid of tiles InternVL cuts an image into: one rule in both of its formats."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_grid(
    grids: Iterable[tuple[int, int]], width: int, height: int, tile_pixels: int
) -> tuple[int, int]:
    """Of ``grids``, (columns, rows), the one nearest to the shape of an image of that size; of equals the
    last that the image fills half. The order of equals is the format's."""
    best, best_difference = (1, 1), float("inf")
    for columns, rows in grids:
        difference = abs(width / height - columns / rows)
        is_nearer = difference < best_difference
        is_filled = width * height > 0.5 * tile_pixels * columns * rows
        if is_nearer or (difference == best_difference and is_filled):
            best, best_difference = (columns, rows), difference
    return best
