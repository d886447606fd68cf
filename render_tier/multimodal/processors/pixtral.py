"""Pixtral and Mistral 3: the image's own size, at most as long as the model allows, in whole patches.

Source of the format: transformers' PixtralImageProcessor, as PixtralProcessor calls it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import ImageLayout, ImageRefused, ProcessedImage
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

DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "resample": BICUBIC,
    "size": {"longest_edge": 1024},
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
}


@dataclass(frozen=True, slots=True)
class PixtralProcessor:
    filter: Filter
    finish: Finish
    most_rows: int
    most_columns: int
    unit: int
    """Pixels of a side of what becomes one token: a patch, or the patches that are merged."""
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(cls, unit: int, *given: Mapping[str, Any]) -> PixtralProcessor:
        """`unit` is what the model's processor passes, whatever `patch_size` its image processor has."""
        settings = Settings("PixtralImageProcessor", DEFAULTS, *given)
        settings.require("do_resize", True)
        settings.require("do_center_crop", False)
        size = settings.size("size", square=True)
        rows, columns = size.longest_edge or size.height, size.longest_edge or size.width
        if rows is None or columns is None:
            raise settings.wrong("size")
        kind, finish = settings.filter(), settings.finish()
        name = digest(
            "pixtral",
            filter=kind,
            finish=finish.summary(),
            most=[rows, columns],
            unit=unit,
        )
        return cls(kind, finish, rows, columns, unit, name)

    def layout(self, width: int, height: int) -> ImageLayout:
        ratio = max(height / self.most_rows, width / self.most_columns)
        rows, columns = height, width
        if ratio > 1:
            rows, columns = math.floor(height / ratio), math.floor(width / ratio)
        if not rows or not columns:
            raise ImageRefused(f"an image of {width}x{height} pixels is too long for its width")
        return ImageLayout(
            width=math.ceil(columns / self.unit) * self.unit, height=math.ceil(rows / self.unit) * self.unit
        )

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        layout = self.layout(width, height)
        pixels = np.empty((3, layout.height, layout.width), self.finish.dtype)
        start = 0
        for band in resized_bands(image, layout.height, layout.width, self.filter):
            stop = start + len(band)
            self.finish.write(band, pixels[:, start:stop].swapaxes(0, 1))
            start = stop
        return ProcessedImage({"pixel_values": pixels}, width, height)
