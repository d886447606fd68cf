"""InternVL (OpenGVLab's format): the image as a grid of square tiles, and a thumbnail of the whole; each
frame of a video as one tile.

The format is that of the models' own code, which vLLM has too: settings are those of config.json, and Pillow
resizes, with finer weights than torch's kernel (`resampling`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from render_tier.multimodal.item import Arrays, ImageLayout, ProcessedImage, UnsupportedProcessor
from render_tier.multimodal.processors.settings import Settings, digest
from render_tier.multimodal.processors.tile_grids import nearest_grid
from render_tier.multimodal.processors.video import VideoLayout

NAME = "InternVLImageProcessor"
DEFAULTS: dict[str, Any] = {
    "min_dynamic_patch": 1,
    "max_dynamic_patch": 6,
    "dynamic_image_size": False,
    "use_thumbnail": False,
}
"""What config.json means where it is silent."""
MOST_TILES = 1 << 10
MEAN = np.array((0.485, 0.456, 0.406), np.float32).reshape(3, 1, 1)
STD = np.array((0.229, 0.224, 0.225), np.float32).reshape(3, 1, 1)


@dataclass(frozen=True, slots=True)
class InternVLChatProcessor:
    side: int
    """Of a tile."""
    fewest_tiles: int
    most_tiles: int
    """Of the grid, without the thumbnail."""
    has_thumbnail: bool
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(cls, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> InternVLChatProcessor:
        if unknown := overrides.keys() - DEFAULTS.keys():
            raise UnsupportedProcessor(
                f"{NAME}: images cannot be processed with {min(unknown)!r}; {', '.join(sorted(DEFAULTS))} are"
                " what it takes"
            )
        given = {name: config.get(name) for name in DEFAULTS}
        settings = Settings(NAME, DEFAULTS, given, overrides)
        side = Settings(NAME, {"image_size": 224}, config.get("vision_config") or {}).count("image_size")
        fewest, most = settings.count("min_dynamic_patch"), settings.count("max_dynamic_patch")
        if most > MOST_TILES:
            raise settings.wrong("max_dynamic_patch")
        if not settings.flag("dynamic_image_size"):
            fewest = most = 1
        has_thumbnail = settings.flag("use_thumbnail")
        name = digest("internvl_chat", side=side, tiles=[fewest, most], thumbnail=has_thumbnail)
        return cls(side, fewest, most, has_thumbnail, name)

    def layout(self, width: int, height: int) -> ImageLayout:
        grids = _grids(self.fewest_tiles, self.most_tiles)
        columns, rows = nearest_grid(grids, width, height, self.side**2)
        tiles = columns * rows
        return ImageLayout(
            width=self.side,
            height=self.side,
            tiles=tiles + 1 if self.has_thumbnail and tiles > 1 else tiles,
            tile_columns=columns,
            tile_rows=rows,
        )

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        layout = self.layout(width, height)
        rows, columns = layout.tile_rows, layout.tile_columns
        whole = Image.fromarray(image)
        pixels = np.empty((layout.tiles, 3, self.side, self.side), np.float32)
        self._cut(whole, pixels[: rows * columns].reshape(rows, columns, *pixels.shape[1:]))
        if layout.tiles > rows * columns:
            self._cut(whole, pixels[None, -1:])
        arrays: Arrays = {
            "pixel_values_flat": pixels,
            "image_num_patches": np.array(layout.tiles, np.int64),
        }
        return ProcessedImage(arrays, width, height)

    def _cut(self, image: Image.Image, tiles: npt.NDArray[np.float32]) -> None:
        """Resize the image to the grid `tiles` (rows, columns, 3, side, side), and write them."""
        rows, columns, *_ = tiles.shape
        resized = image.resize((columns * self.side, rows * self.side), Image.Resampling.BICUBIC)
        cut = np.asarray(resized).reshape(rows, self.side, columns, self.side, 3).transpose(0, 2, 4, 1, 3)
        for row, column in np.ndindex(rows, columns):
            tile = tiles[row, column]
            np.copyto(tile, cut[row, column])
            tile /= np.float32(255)
            tile -= MEAN
            tile /= STD


@dataclass(frozen=True, slots=True)
class InternVLChatVideoProcessor:
    picture: InternVLChatProcessor
    group: int = 1

    @classmethod
    def load(cls, config: Mapping[str, Any]) -> InternVLChatVideoProcessor:
        """Raises UnsupportedProcessor."""
        return cls(InternVLChatProcessor.load(config, {"dynamic_image_size": False}))

    @property
    def settings_digest(self) -> bytes:
        return self.picture.settings_digest

    def layout(self, frames: int, width: int, height: int) -> VideoLayout:
        return VideoLayout(frames, self.picture.side, self.picture.side)

    def process(self, frames: Iterable[npt.NDArray[np.uint8]], layout: VideoLayout) -> Arrays:
        pixels = np.empty((layout.groups, 3, layout.height, layout.width), np.float32)
        for number, frame in enumerate(frames):
            (pixels[number],) = self.picture.process(frame).arrays["pixel_values_flat"]
        return {"pixel_values_flat_video": pixels, "video_num_patches": np.array(layout.groups, np.int64)}


@functools.lru_cache(maxsize=16)
def _grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) of every grid with that many tiles, by their number.

    Grids of one number stand in the order of a set: of that to which the models' code adds the grids of each
    longest side, from the shortest on.
    """
    found: set[tuple[int, int]] = set()
    for longest in range(fewest, most + 1):
        sides = range(1, longest + 1)
        for columns in sides if longest == fewest else (*sides[: most // longest], longest):
            is_new = fewest < longest > columns
            for rows in range(longest if is_new else 1, min(longest, most // columns) + 1):
                if columns * rows >= fewest:
                    found.add((columns, rows))
    return tuple(sorted(found, key=lambda grid: grid[0] * grid[1]))
