"""Images of Mistral's own format, which engines process themselves: how many tokens they make of one.

Source of the rule: mistral-common's ImageEncoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import ImageLayout, ProcessedImage, UnsupportedProcessor


@dataclass(frozen=True, slots=True)
class MistralCommonProcessor:
    unit: int
    """Pixels of a side of what becomes one token."""
    longest_side: int

    @classmethod
    def load(cls, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> MistralCommonProcessor:
        """Engines read no settings for it. Raises UnsupportedProcessor for some."""
        if overrides:
            raise UnsupportedProcessor(
                f"images of Mistral's own format cannot be processed with {min(overrides)!r}"
            )
        vision = config["vision_config"]
        return cls(vision["patch_size"] * config["spatial_merge_size"], vision["image_size"])

    @property
    def settings_digest(self) -> bytes:
        return hashlib.sha256(f"mistral_common {self.unit} {self.longest_side}".encode()).digest()

    def layout(self, width: int, height: int) -> ImageLayout:
        ratio = max(width, height) / self.longest_side
        if ratio > 1:
            width, height = (max(round(side / ratio), 1) for side in (width, height))
        columns, lines = ((side - 1) // self.unit + 1 for side in (width, height))
        return ImageLayout(width=columns * self.unit, height=lines * self.unit)

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        """The picture as it is: engines resize it without smoothing, and no smaller one becomes the same."""
        height, width, _ = image.shape
        return ProcessedImage({"pixel_values": image.transpose(2, 0, 1)}, width, height)
