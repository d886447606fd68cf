"""InternVL (transformers' format): the image as a grid of square tiles, and a thumbnail of the whole.

Source of the format: transformers' GotOcr2ImageProcessor, as InternVLProcessor calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays, ImageLayout, ProcessedImage
from render_tier.multimodal.processors.kernel_weights import Filter
from render_tier.multimodal.processors.resampling import resized_bands
from render_tier.multimodal.processors.settings import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    Finish,
    Settings,
    digest,
)
from render_tier.multimodal.processors.tile_grids import nearest_grid

DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "resample": BICUBIC,
    "size": {"height": 384, "width": 384},
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "min_patches": 1,
    "max_patches": 12,
}
MOST_TILES = 1 << 10
_TALLEST_BAND = 64


@dataclass(frozen=True, slots=True)
class GotOcr2Processor:
    filter: Filter
    finish: Finish
    tile_height: int
    tile_width: int
    tiled: bool
    fewest_tiles: int
    most_tiles: int
    """Of the grid, without the thumbnail."""
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(cls, tiled: bool, *given: Mapping[str, Any]) -> GotOcr2Processor:
        """`tiled` is what the model's processor says where an override does not, whatever the file has."""
        settings = Settings("GotOcr2ImageProcessor", DEFAULTS, *given)
        settings.require("do_resize", True)
        size = settings.size("size", square=True)
        if size.height is None or size.width is None:
            raise settings.wrong("size")
        fewest, most = settings.count("min_patches"), settings.count("max_patches")
        if most > MOST_TILES:
            raise settings.wrong("max_patches")
        kind, finish = settings.filter(), settings.finish()
        name = digest(
            "got_ocr2",
            filter=kind,
            finish=finish.summary(),
            tile=[size.height, size.width],
            tiles=[fewest, most] if tiled else None,
        )
        return cls(kind, finish, size.height, size.width, tiled, fewest, most, name)

    def layout(self, width: int, height: int) -> ImageLayout:
        grids = _grids(self.fewest_tiles, self.most_tiles) if self.tiled else ()
        columns, rows = nearest_grid(grids, width, height, self.tile_width * self.tile_height)
        tiles = columns * rows
        return ImageLayout(
            width=self.tile_width,
            height=self.tile_height,
            tiles=tiles + 1 if tiles > 1 else 1,
            tile_columns=columns,
            tile_rows=rows,
        )

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        layout = self.layout(width, height)
        rows, columns = layout.tile_rows, layout.tile_columns
        pixels = np.empty((layout.tiles, 3, self.tile_height, self.tile_width), self.finish.dtype)
        self._cut(image, pixels[: rows * columns].reshape(rows, columns, *pixels.shape[1:]))
        if layout.tiles > rows * columns:
            self._cut(image, pixels[None, -1:])
        arrays: Arrays = {"pixel_values": pixels, "image_num_patches": np.array(layout.tiles, np.int64)}
        return ProcessedImage(arrays, width, height)

    def _cut(self, image: npt.NDArray[np.uint8], tiles: npt.NDArray[np.float32]) -> None:
        """Resize the image to the grid `tiles` (rows, columns, 3, height, width), and write them."""
        rows, columns, _, height, width = tiles.shape
        tall = _largest_divisor(height, _TALLEST_BAND)
        bands = resized_bands(image, rows * height, columns * width, self.filter, band=tall)
        for number, band in enumerate(bands):
            row, top = divmod(number * tall, height)
            cut = self.finish.finished(band).reshape(tall, 3, columns, width).transpose(2, 1, 0, 3)
            tiles[row, :, :, top : top + tall] = cut


@functools.lru_cache(maxsize=16)
def _grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) of every grid with that many tiles, by their number."""
    found = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most // columns + 1)
        if columns * rows >= fewest
    ]
    return tuple(sorted(found, key=lambda grid: grid[0] * grid[1]))


def _largest_divisor(number: int, bound: int) -> int:
    return next(divisor for divisor in range(bound, 0, -1) if number % divisor == 0)
