"""What a processor of videos is, and the sizes of what a model is shown for a video."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import Arrays


@dataclass(frozen=True, slots=True)
class VideoLayout:
    groups: int
    """Of frames that are shown as one picture in time."""
    height: int
    """Pixels of a frame after its resize."""
    width: int


class VideoProcessor(Protocol):
    @property
    def settings_digest(self) -> bytes:
        """Names the family and every setting that changes a result."""

    @property
    def group(self) -> int:
        """Frames of one group."""

    def layout(self, frames: int, width: int, height: int) -> VideoLayout:
        """What `process` would make of so many frames of that size. Raises ImageRefused."""

    def process(self, frames: Iterable[npt.NDArray[np.uint8]], layout: VideoLayout) -> Arrays:
        """What the model's processor returns for one video, by its names and with vLLM's shapes. ``frames``:
        as many as ``layout`` was made for, each (height, width, 3); one is asked for when the one before it
        is not needed any more."""
