"""CLIP, SigLIP and the pictures of Gemma 3: one picture of one size, whatever the image's.

Source of the format: transformers' CLIPImageProcessor, LlavaImageProcessor, SiglipImageProcessor and
Gemma3ImageProcessor (without pan and scan).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import ImageLayout, ImageRefused, ProcessedImage
from render_tier.multimodal.processors.kernel_weights import Filter, Window
from render_tier.multimodal.processors.resampling import resized_bands
from render_tier.multimodal.processors.settings import (
    BICUBIC,
    BILINEAR,
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    Color,
    Finish,
    Settings,
    Size,
    digest,
)

_COMMON: dict[str, Any] = {"do_resize": True, "do_rescale": True, "do_normalize": True}
CLIP_DEFAULTS: dict[str, Any] = {
    **_COMMON,
    "resample": BICUBIC,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
}
SIGLIP_DEFAULTS: dict[str, Any] = {
    **_COMMON,
    "resample": BICUBIC,
    "image_mean": HALF,
    "image_std": HALF,
    "size": {"height": 224, "width": 224},
}
GEMMA3_DEFAULTS: dict[str, Any] = {**SIGLIP_DEFAULTS, "resample": BILINEAR}
MOST_PADDED_PIXELS = 1 << 27
"""Of the square into which an image is put."""
MOST_PIXELS_A_SIDE = 1 << 22
"""To which a side may be stretched, before the crop, by a picture a few pixels wide."""


@dataclass(frozen=True, slots=True)
class StandardProcessor:
    filter: Filter
    finish: Finish
    size: Size
    crop: tuple[int, int] | None
    """(height, width) of what is kept of the resized image, around its middle."""
    background: Color | None
    """Of the square into whose middle an image is put first, where that is done."""
    settings_digest: bytes = field(repr=False)

    @classmethod
    def load(
        cls, name: str, defaults: Mapping[str, Any], *given: Mapping[str, Any], square: bool = False
    ) -> StandardProcessor:
        """`square`: whether a lone number is a square's side (else the shortest edge)."""
        settings = Settings(name, defaults, *given)
        settings.require("do_resize", True)
        if name != "LlavaImageProcessor":
            settings.require("do_pad", False)
        size = settings.size("size", square=square)
        if size.shortest_edge is None and (size.height is None or size.width is None):
            raise settings.wrong("size")
        if size.longest_edge is not None:
            raise settings.wrong("size")
        crop = None
        if settings.flag("do_center_crop"):
            cut = settings.size("crop_size", square=True)
            if cut.height is None or cut.width is None:
                raise settings.wrong("crop_size")
            crop = cut.height, cut.width
        kind, finish = settings.filter(), settings.finish()
        background = settings.mean_color() if settings.flag("do_pad") else None
        return cls(
            filter=kind,
            finish=finish,
            size=size,
            crop=crop,
            background=background,
            settings_digest=digest(
                "standard",
                filter=kind,
                finish=finish.summary(),
                size=[size.height, size.width, size.shortest_edge],
                crop=crop,
                background=background,
            ),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        full = self._resized(width, height)
        rows, columns = self.crop or full
        return ImageLayout(width=columns, height=rows)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """(height, width) before the crop."""
        if self.background is not None:
            width = height = max(width, height)
            if width * height > MOST_PADDED_PIXELS:
                raise ImageRefused(f"the square for an image with a side of {width} pixels is too large")
        edge = self.size.shortest_edge
        if edge is None:
            assert self.size.height is not None
            assert self.size.width is not None
            return self.size.height, self.size.width
        longest = int(edge * max(width, height) / min(width, height))
        if longest > MOST_PIXELS_A_SIDE:
            raise ImageRefused(f"an image of {width}x{height} pixels is too long for its width")
        return (longest, edge) if width <= height else (edge, longest)

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        height, width, _ = image.shape
        full = self._resized(width, height)
        if self.background is not None:
            image = _in_square(image, self.background)
        rows, columns = self.crop or full
        pixels = np.empty((3, rows, columns), self.finish.dtype)
        top, bottom, above = _middle(full[0], rows)
        left, right, before = _middle(full[1], columns)
        if (bottom - top, right - left) != (rows, columns):
            pixels[:] = self.finish.black()
        kept = pixels[:, above : above + bottom - top, before : before + right - left]
        start = 0
        for band in resized_bands(image, *full, self.filter, window=Window(left, top, right, bottom)):
            stop = start + len(band)
            self.finish.write(band, kept[:, start:stop].swapaxes(0, 1))
            start = stop
        return ProcessedImage({"pixel_values": pixels}, width, height)


def _in_square(image: npt.NDArray[np.uint8], background: Color) -> npt.NDArray[np.uint8]:
    height, width, _ = image.shape
    if height == width:
        return image
    side = max(height, width)
    square = np.empty((side, side, 3), np.uint8)
    square[:] = np.full((side, 3), background, np.uint8)  # a row at a time, which is faster than a pixel
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = image
    return square


def _middle(length: int, wanted: int) -> tuple[int, int, int]:
    """Where `wanted` pixels begin and end in the middle of `length`; and how many of padding precede them."""
    if wanted >= length:
        return 0, length, (wanted - length) // 2
    start = int((length - wanted) / 2.0)
    return start, start + wanted, 0
