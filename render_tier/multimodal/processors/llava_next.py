"""LLaVA-NeXT: an overview, and the image fitted into the best of some resolutions and cut into tiles.

Source of the format: transformers' LlavaNextImageProcessor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays, ImageLayout, ProcessedImage
from render_tier.multimodal.processors.kernel_weights import Filter
from render_tier.multimodal.processors.resampling import resized_bands
from render_tier.multimodal.processors.settings import Finish, Settings, digest
from render_tier.multimodal.processors.standard import CLIP_DEFAULTS

DEFAULTS: dict[str, Any] = {
    **CLIP_DEFAULTS,
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
}


@dataclass(frozen=True, slots=True)
class LlavaNextProcessor:
    filter: Filter
    finish: Finish
    side: int
    """Of a tile, and of the overview."""
    resolutions: tuple[tuple[int, int], ...]
    """(height, width), each a whole number of tiles."""
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(cls, *given: Mapping[str, Any]) -> LlavaNextProcessor:
        settings = Settings("LlavaNextImageProcessor", DEFAULTS, *given)
        settings.require("do_resize", True)
        size = settings.size("size", square=False)
        side = size.shortest_edge or size.height
        if side is None or (size.width or side) != side:
            raise settings.wrong("size")
        # Tiles are cut with that side, whether or not `do_center_crop` is said.
        crop = settings.size("crop_size", square=True)
        if (crop.height, crop.width) != (side, side):
            raise settings.wrong("crop_size")
        resolutions = settings.resolutions("image_grid_pinpoints")
        if any(length % side for resolution in resolutions for length in resolution):
            raise settings.wrong("image_grid_pinpoints")
        kind, finish = settings.filter(), settings.finish()
        name = digest(
            "llava_next",
            filter=kind,
            finish=finish.summary(),
            side=side,
            resolutions=resolutions,
        )
        return cls(kind, finish, side, resolutions, name)

    def layout(self, width: int, height: int) -> ImageLayout:
        resolution = self._resolution(width, height)
        rows, columns = resolution[0] // self.side, resolution[1] // self.side
        return ImageLayout(
            width=self.side, height=self.side, tiles=1 + rows * columns, tile_columns=columns, tile_rows=rows
        )

    def _resolution(self, width: int, height: int) -> tuple[int, int]:
        """The one in which most of the image's pixels are kept; of those, the one with the least unused."""
        best, most_kept, least_unused = self.resolutions[0], 0, float("inf")
        for rows, columns in self.resolutions:
            scale = min(columns / width, rows / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            unused = rows * columns - kept
            if kept > most_kept or (kept == most_kept and unused < least_unused):
                best, most_kept, least_unused = (rows, columns), kept, unused
        return best

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        layout = self.layout(width, height)
        rows, columns, side = layout.tile_rows, layout.tile_columns, self.side
        canvas = np.empty((3, rows * side, columns * side), self.finish.dtype)
        canvas[:] = self.finish.black()
        inner_height, inner_width = _fitted(width, height, *canvas.shape[1:])
        top, left = (rows * side - inner_height) // 2, (columns * side - inner_width) // 2
        self._draw(image, canvas[:, top : top + inner_height, left : left + inner_width])
        pixels = np.empty((layout.tiles, 3, side, side), self.finish.dtype)
        self._draw(image, pixels[0])
        tiles = pixels[1:].reshape(rows, columns, 3, side, side)
        tiles[:] = canvas.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
        arrays: Arrays = {"pixel_values": pixels, "image_sizes": np.array([height, width], np.int64)}
        return ProcessedImage(arrays, width, height)

    def _draw(self, image: npt.NDArray[np.uint8], pixels: npt.NDArray[np.float32]) -> None:
        """Resize the image to the size of `pixels` (3, height, width), and write it there."""
        start = 0
        for band in resized_bands(image, pixels.shape[1], pixels.shape[2], self.filter):
            stop = start + len(band)
            self.finish.write(band, pixels[:, start:stop].swapaxes(0, 1))
            start = stop


def _fitted(width: int, height: int, rows: int, columns: int) -> tuple[int, int]:
    """(height, width) of the image in a frame of (rows, columns), which it fills one way."""
    across, down = columns / width, rows / height
    if across < down:
        return min(math.ceil(height * across), rows), columns
    return rows, min(math.ceil(width * down), columns)
