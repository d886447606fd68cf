"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: any size near the image's own, cut into patches that are listed flat.

Source of the format: transformers' Qwen2VLImageProcessor, which all of them use with other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays, ImageLayout, ImageRefused, ProcessedImage
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
MOST_ELONGATED = 200
"""Of an image's sides, how many times longer the one may be than the other."""


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
        fewest, most = _pixels(*given)
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
        if max(height, width) / min(height, width) > MOST_ELONGATED:
            raise ImageRefused(
                f"an image of {width}x{height} pixels is more than {MOST_ELONGATED} times longer than wide"
            )
        unit = self.patch * self.merge
        rows, columns = round(height / unit) * unit, round(width / unit) * unit
        if rows * columns > self.most_pixels:
            shrink = math.sqrt((height * width) / self.most_pixels)
            rows = max(unit, math.floor(height / shrink / unit) * unit)
            columns = max(unit, math.floor(width / shrink / unit) * unit)
        elif rows * columns < self.fewest_pixels:
            grow = math.sqrt(self.fewest_pixels / (height * width))
            rows = math.ceil(height * grow / unit) * unit
            columns = math.ceil(width * grow / unit) * unit
        if not rows or not columns:
            raise ImageRefused(f"an image of {width}x{height} pixels is too small for one patch")
        return ImageLayout(width=columns, height=rows)

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        layout = self.layout(width, height)
        patch, merge = self.patch, self.merge
        unit = patch * merge
        across = layout.width // unit
        rows = layout.height // unit
        patches = np.empty((rows, across, merge, merge, 3, self.frames, patch, patch), self.finish.dtype)
        # A line of a patch is copied as one item, which takes numpy half as long as the line's numbers.
        line = np.dtype((np.void, patch * patches.itemsize))
        bands = resized_bands(image, layout.height, layout.width, self.filter, band=unit)
        for band, row in zip(bands, patches.view(line)[..., 0], strict=True):
            # (merge, patch, channel, across, merge) -> (across, merge, merge, channel, patch)
            lines = self.finish.finished(band).reshape(merge, patch, 3, across, merge, patch).view(line)
            row[:, :, :, :, 0] = lines[..., 0].transpose(3, 0, 4, 2, 1)
            row[:, :, :, :, 1:] = row[:, :, :, :, :1]
        grid = np.array([1, layout.height // patch, layout.width // patch], np.int64)
        arrays: Arrays = {
            "pixel_values": patches.reshape(-1, 3 * self.frames * patch * patch),
            "image_grid_thw": grid,
        }
        return ProcessedImage(arrays, width, height)


def _pixels(*given: Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most pixels of a resized image.

    In one mapping the older names `min_pixels` and `max_pixels` go before `size`; a later mapping's `size`
    goes before all of an earlier one.
    """
    fewest, most = FEWEST_PIXELS, MOST_PIXELS
    for mapping in given:
        settings = Settings(NAME, {}, mapping)
        if mapping.get("size") is not None:
            size = settings.size("size", square=False)
            if size.shortest_edge is None or size.longest_edge is None:
                if not {"min_pixels", "max_pixels"} <= mapping.keys():
                    raise settings.wrong("size")
            else:
                fewest, most = size.shortest_edge, size.longest_edge
        fewest = settings.optional_count("min_pixels") or fewest
        most = settings.optional_count("max_pixels") or most
    return fewest, most
