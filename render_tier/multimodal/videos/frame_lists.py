"""A video as a list of images' files: what follows the comma of a ``data:video/jpeg;base64,`` URL, in base64
with commas between frames.

vLLM reads as many frames as it would sample, and drops what is behind them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from pybase64 import b64decode

from render_tier.multimodal.decoding import BACKGROUND, Color, ImageTooLarge, OpenedImage, UnreadableImage
from render_tier.multimodal.videos.opened import Frame, check_pixels
from render_tier.multimodal.videos.sampling import Facts, Sampling, list_facts


class FrameList:
    """Frames of which the headers have been read."""

    def __init__(
        self,
        listed: bytes,
        sampling: Sampling,
        *,
        max_frame_pixels: int,
        max_pixels: int,
        background: Color = BACKGROUND,
    ) -> None:
        """``background``: what transparency is laid on. Raises UnreadableImage and
        ImageTooLarge, which name the frame at fault."""
        self._background = background
        self._frames: list[OpenedImage] = []
        most = sampling.most_frames
        for number, text in enumerate(listed.split(b",", most)[:most]):
            with _named(number):
                self._frames.append(OpenedImage(_decoded(text), max_pixels=max_frame_pixels))
        sizes = [frame.size for frame in self._frames]
        self.size = sizes[0]
        for number, (width, height) in enumerate(sizes):
            if (width, height) != self.size:
                raise UnreadableImage(
                    f"frame {number} has {width}x{height} pixels, the first one {self.size[0]}x{self.size[1]}"
                )
        check_pixels(len(sizes), *self.size, of_frame=max_frame_pixels, of_video=max_pixels)
        self.planned = list_facts(len(sizes), sampling.listed_rate)

    def frames(self, facts: Facts) -> Generator[Frame, None, None]:
        width, height = self.size
        for number, frame in enumerate(self._frames):
            with _named(number):
                pixels, _ = frame.pixels(self._background)
                if pixels.shape[:2] != (height, width):
                    raise UnreadableImage("it has another size than its header says")
            yield pixels


def _decoded(text: bytes) -> bytes:
    try:
        decoded: bytes = b64decode(text, validate=True)
    except ValueError as error:
        raise UnreadableImage(f"not base64: {error}") from None
    return decoded


@contextmanager
def _named(number: int) -> Iterator[None]:
    try:
        yield
    except (UnreadableImage, ImageTooLarge) as error:
        raise type(error)(f"frame {number}: {error}") from None
