"""What a video is to the rest: a size, a number of frames, and the frames when they are asked for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.decoding import ImageTooLarge
from render_tier.multimodal.videos.sampling import Facts

Frame = npt.NDArray[np.uint8]
"""(height, width, 3), RGB."""


class FramesMissing(Exception):
    """Some frames cannot be read: ``facts`` are what is to be taken instead."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(f"{len(facts.indices)} of the video's frames can be read")
        self.facts = facts


class OpenedVideo(Protocol):
    """A video of which the header has been read."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of a frame."""

    @property
    def planned(self) -> Facts:
        """As they are if every frame can be read."""

    def frames(self, facts: Facts) -> Generator[Frame, None, None]:
        """The frames that ``facts`` says are taken; each may be overwritten when the next one is asked for.
        Raises UnreadableImage; FramesMissing at the end."""


def check_pixels(frames: int, width: int, height: int, *, of_frame: int, of_video: int) -> None:
    """Raises ImageTooLarge for more pixels than are allowed."""
    if width * height > of_frame:
        raise ImageTooLarge(
            f"the video's frames have {width}x{height} pixels; at most {of_frame} are allowed"
        )
    if frames * width * height > of_video:
        raise ImageTooLarge(
            f"{frames} frames of {width}x{height} pixels would be taken of the video; at most {of_video} "
            "pixels are allowed"
        )
