"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: any size near the image's own, cut into patches that are listed flat.

Source of the format: transformers' Qwen2VLImageProcessor, which all of them use with other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays, ImageLayout, ProcessedImage
from render_tier.multimodal.processors.kernel_weights import Filter
from render_tier.multimodal.processors.qwen_patches import near_size, write_frames
from render_tier.multimodal.processors.settings import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    Finish,
    Settings,
    digest,
    pixel_bounds,
)

NAME = "Qwen2VLImageProcessor"
DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "resample": BICUBIC,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
FEWEST_PIXELS, MOST_PIXELS = 56 * 56, 28 * 28 * 1280
"""Of a resized image, where no file says."""


@dataclass(frozen=True, slots=True)
class Qwen2VLProcessor:
    filter: Filter
    finish: Finish
    fewest_pixels: int
    most_pixels: int
    patch: int
    frames: int
    """Copies of a still image, which the model reads as a video's frames."""
    merge: int
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(cls, *given: Mapping[str, Any]) -> Qwen2VLProcessor:
        settings = Settings(NAME, DEFAULTS, *given)
        settings.require("do_resize", True)
        fewest, most = pixel_bounds(NAME, (FEWEST_PIXELS, MOST_PIXELS), *given)
        kind, finish = settings.filter(), settings.finish()
        patch, merge = settings.count("patch_size"), settings.count("merge_size")
        frames = settings.count("temporal_patch_size")
        name = digest(
            NAME,
            filter=kind,
            finish=finish.summary(),
            pixels=[fewest, most],
            patch=[patch, frames, merge],
        )
        return cls(kind, finish, fewest, most, patch, frames, merge, name)

    def layout(self, width: int, height: int) -> ImageLayout:
        unit = self.patch * self.merge
        rows, columns = near_size(width, height, unit, fewest=self.fewest_pixels, most=self.most_pixels)
        return ImageLayout(width=columns, height=rows)

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        layout = self.layout(width, height)
        patch, merge = self.patch, self.merge
        rows, across = layout.height // (patch * merge), layout.width // (patch * merge)
        patches = np.empty((rows, across, merge, merge, 3, self.frames, patch, patch), self.finish.dtype)
        write_frames(image, self.filter, self.finish, patches)
        grid = np.array([1, layout.height // patch, layout.width // patch], np.int64)
        arrays: Arrays = {
            "pixel_values": patches.reshape(-1, 3 * self.frames * patch * patch),
            "image_grid_thw": grid,
        }
        return ProcessedImage(arrays, width, height)
