"""Videos of InternVL (transformers' format): each frame is one picture, as an image without tiles.

Source of the format: transformers' InternVLVideoProcessor, which vLLM gives the size of the model's images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays
from render_tier.multimodal.processors.got_ocr2 import GotOcr2Processor
from render_tier.multimodal.processors.settings import Pixels, Settings, digest
from render_tier.multimodal.processors.video import VideoLayout

INTERNVL = "InternVLVideoProcessor"


@dataclass(frozen=True, slots=True)
class InternVLVideoProcessor:
    picture: GotOcr2Processor
    settings_digest: bytes = field(repr=False)
    group: int = 1

    @classmethod
    def load(cls, *given: Mapping[str, Any]) -> InternVLVideoProcessor:
        """Raises UnsupportedProcessor."""
        Settings(INTERNVL, {}, *given).require("do_center_crop", False)
        picture = GotOcr2Processor.load(False, *given)
        return cls(picture, digest(INTERNVL, picture=picture.settings_digest.hex()))

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a frame after its resize."""
        return self.picture.tile_height, self.picture.tile_width

    def layout(self, frames: int, width: int, height: int) -> VideoLayout:
        return VideoLayout(frames, *self.size)

    def process(self, frames: Iterable[npt.NDArray[np.uint8]], layout: VideoLayout) -> Arrays:
        shape = (layout.groups, 3, layout.height, layout.width)
        pixels: Pixels = np.empty(shape, self.picture.finish.dtype)
        for number, frame in enumerate(frames):
            pixels[number] = self.picture.process(frame).arrays["pixel_values"][0]
        return {"pixel_values_videos": pixels, "video_num_patches": np.array(layout.groups, np.int64)}
