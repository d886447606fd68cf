"""Videos of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: frames of one size, some of them at a time cut into patches.

Source of the format: transformers' Qwen2VLVideoProcessor and Qwen3VLVideoProcessor. They differ in the size
that frames get: the older one looks at a frame by itself, the newer one at all of a video's pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays, ImageRefused
from render_tier.multimodal.processors.kernel_weights import Filter
from render_tier.multimodal.processors.qwen_patches import check_shape, near_size, write_frames
from render_tier.multimodal.processors.settings import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    Finish,
    Pixels,
    Settings,
    digest,
    pixel_bounds,
)
from render_tier.multimodal.processors.video import VideoLayout

_STEPS: dict[str, Any] = {
    "do_resize": True,
    "resample": BICUBIC,
    "do_rescale": True,
    "do_normalize": True,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "cap_pixels_per_frame": False,
}
QWEN2_VL, QWEN3_VL = "Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor"
_DEFAULTS: Mapping[str, dict[str, Any]] = {
    QWEN2_VL: {**_STEPS, "image_mean": CLIP_MEAN, "image_std": CLIP_STD, "patch_size": 14},
    QWEN3_VL: {**_STEPS, "image_mean": HALF, "image_std": HALF, "patch_size": 16},
}
_PIXELS = {QWEN2_VL: (128 * 28**2, 768 * 28**2), QWEN3_VL: (128 * 32**2, 768 * 32**2)}
"""The fewest and the most, of a frame or of all of a video's frames, where no file says."""


@dataclass(frozen=True, slots=True)
class QwenVideoProcessor:
    filter: Filter
    finish: Finish
    counts_all_frames: bool
    """Whether the bounds on pixels are for all frames together."""
    fewest_pixels: int
    most_pixels: int
    patch: int
    group: int
    """Frames of one patch."""
    merge: int
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(cls, name: str, *given: Mapping[str, Any]) -> QwenVideoProcessor:
        """Raises UnsupportedProcessor."""
        settings = Settings(name, _DEFAULTS[name], *given)
        settings.require("do_resize", True)
        settings.require("cap_pixels_per_frame", False)
        fewest, most = pixel_bounds(name, _PIXELS[name], *given)
        kind, finish = settings.filter(), settings.finish()
        patch, merge = settings.count("patch_size"), settings.count("merge_size")
        group = settings.count("temporal_patch_size")
        named = digest(
            name, filter=kind, finish=finish.summary(), pixels=[fewest, most], patch=[patch, group, merge]
        )
        return cls(kind, finish, name == QWEN3_VL, fewest, most, patch, group, merge, named)

    def layout(self, frames: int, width: int, height: int) -> VideoLayout:
        """Raises ImageRefused."""
        groups = -(-frames // self.group)
        if self.counts_all_frames:
            rows, columns = self._size_by_all_frames(frames, width, height)
        else:
            rows, columns = near_size(
                width, height, self.patch * self.merge, fewest=self.fewest_pixels, most=self.most_pixels
            )
        return VideoLayout(groups, rows, columns)

    def _size_by_all_frames(self, frames: int, width: int, height: int) -> tuple[int, int]:
        """(height, width)"""
        unit = self.patch * self.merge
        if frames < self.group:
            raise ImageRefused(f"a video of {frames} frames, of which the model takes at least {self.group}")
        sent = width, height
        if height < unit or width < unit:
            scale = max(unit / height, unit / width)
            height, width = int(height * scale), int(width * scale)
        check_shape(width, height, sent=sent)
        rows, columns = round(height / unit) * unit, round(width / unit) * unit
        counted = round(frames / self.group) * self.group * rows * columns
        if counted > self.most_pixels:
            shrink = math.sqrt((frames * height * width) / self.most_pixels)
            rows = max(unit, math.floor(height / shrink / unit) * unit)
            columns = max(unit, math.floor(width / shrink / unit) * unit)
        elif counted < self.fewest_pixels:
            grow = math.sqrt(self.fewest_pixels / (frames * height * width))
            rows = math.ceil(height * grow / unit) * unit
            columns = math.ceil(width * grow / unit) * unit
        return rows, columns

    def process(self, frames: Iterable[npt.NDArray[np.uint8]], layout: VideoLayout) -> Arrays:
        patch, merge = self.patch, self.merge
        rows, across = layout.height // (patch * merge), layout.width // (patch * merge)
        shape = (layout.groups, rows, across, merge, merge, 3, self.group, patch, patch)
        patches: Pixels = np.empty(shape, self.finish.dtype)
        for number, frame in enumerate(frames):
            group, place = divmod(number, self.group)
            # The last frame stands in for those that its group lacks.
            write_frames(frame, self.filter, self.finish, patches[group][..., place:, :, :])
        grid = layout.groups, layout.height // patch, layout.width // patch
        return {
            "pixel_values_videos": patches.reshape(-1, 3 * self.group * patch**2),
            "video_grid_thw": np.array(grid, np.int64),
        }
