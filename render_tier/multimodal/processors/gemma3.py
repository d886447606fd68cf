"""Gemma 3: an image as a picture of the one size; with pan and scan a long one as several, the whole
image and then crops along its longer side.

Source of the format: transformers' Gemma3ImageProcessor, as Gemma3Processor calls it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays, ImageLayout, ImageRefused, ProcessedImage
from render_tier.multimodal.processors.settings import Settings, digest
from render_tier.multimodal.processors.standard import GEMMA3_DEFAULTS, StandardProcessor

NAME = "Gemma3ImageProcessor"
ASKED_FOR: dict[str, Any] = {
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
"""What Gemma3Processor says to its image processor whatever that one's file has, where a call does not."""
MOST_CROPS = 1 << 8
NO_CROPS = 0, 0


@dataclass(frozen=True, slots=True)
class PanAndScan:
    least_side: int
    """Of a crop; an image whose crops would be smaller has none."""
    most_crops: int
    least_ratio: float
    """Of the image's sides; one that is nearer to a square has no crops."""

    @classmethod
    def load(cls, settings: Settings) -> PanAndScan:
        most_crops = settings.count("pan_and_scan_max_num_crops")
        if most_crops > MOST_CROPS:
            raise settings.wrong("pan_and_scan_max_num_crops")
        return cls(
            least_side=settings.count("pan_and_scan_min_crop_size"),
            most_crops=most_crops,
            least_ratio=settings.number("pan_and_scan_min_ratio_to_activate"),
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """(columns, rows) of crops."""
        longer, shorter = max(width, height), min(width, height)
        if longer / shorter < self.least_ratio:
            return NO_CROPS
        crops = min(longer // self.least_side, math.floor(longer / shorter + 0.5))
        crops = min(self.most_crops, max(2, crops))
        side = math.ceil(longer / crops)
        if min(side, shorter) < self.least_side:
            return NO_CROPS
        if side * (crops - 1) >= longer:
            raise ImageRefused(f"an image of {width}x{height} pixels has no {crops} crops")
        return (crops, 1) if width >= height else (1, crops)


@dataclass(frozen=True, slots=True)
class Gemma3Processor:
    picture: StandardProcessor
    """Makes one of the image, and of each crop."""
    crops: PanAndScan | None
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(cls, given: Mapping[str, Any], asked: Mapping[str, Any]) -> Gemma3Processor:
        """`asked` are a call's arguments."""
        picture = StandardProcessor.load(NAME, GEMMA3_DEFAULTS, given, asked, square=True)
        settings = Settings(NAME, ASKED_FOR, asked)
        crops = PanAndScan.load(settings) if settings.flag("do_pan_and_scan") else None
        name = digest("gemma3", picture=picture.settings_digest.hex(), crops=repr(crops))
        return cls(picture, crops, name)

    def layout(self, width: int, height: int) -> ImageLayout:
        columns, rows = self._grid(width, height)
        size = self.picture.layout(width, height)
        return ImageLayout(size.width, size.height, 1 + columns * rows, columns, rows)

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        return NO_CROPS if self.crops is None else self.crops.grid(width, height)

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        columns, rows = self._grid(width, height)
        shown = [image]
        if columns:
            across, down = math.ceil(width / columns), math.ceil(height / rows)
            shown += [
                image[row * down : (row + 1) * down, column * across : (column + 1) * across]
                for row in range(rows)
                for column in range(columns)
            ]
        pixels = [self.picture.process(each).arrays["pixel_values"] for each in shown]
        arrays: Arrays = {
            "pixel_values": np.stack(pixels) if columns else pixels[0][None],
            "num_patches": np.array(len(shown), np.int64),
        }
        return ProcessedImage(arrays, width, height)
