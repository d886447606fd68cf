"""A client's video, of whatever form, opened within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from render_tier.multimodal.decoding import Color, UnreadableImage
from render_tier.multimodal.videos.decoder_process import DecoderPool
from render_tier.multimodal.videos.files import VideoFile
from render_tier.multimodal.videos.frame_lists import FrameList
from render_tier.multimodal.videos.opened import OpenedVideo
from render_tier.multimodal.videos.sampling import Sampling


@dataclass(frozen=True)
class VideoSource:
    data: bytes
    is_list: bool
    """Whether it is the text of a list of frames, and not a file."""


@dataclass(frozen=True)
class VideoRules:
    max_frame_pixels: int
    max_pixels: int
    """Of all frames that are taken of a video."""
    decoder_seconds: float
    """To wait for the process that reads a file, before it is ended."""
    decoder_memory_bytes: int
    """Of that process."""


class VideoOpener:
    """Thread-safe."""

    def __init__(self, rules: VideoRules) -> None:
        self._rules = rules
        self._decoders: DecoderPool | None = None
        if find_spec("cv2") is not None:
            self._decoders = DecoderPool(
                seconds=rules.decoder_seconds, memory_bytes=rules.decoder_memory_bytes
            )

    @property
    def max_pixels(self) -> int:
        """Of all frames that are taken of a video."""
        return self._rules.max_pixels

    def close(self) -> None:
        if self._decoders is not None:
            self._decoders.close()

    def open(self, source: VideoSource, sampling: Sampling, background: Color) -> OpenedVideo:
        """``background``: what transparency of listed frames is laid on. Raises UnreadableImage and
        ImageTooLarge."""
        of_frame, of_video = self._rules.max_frame_pixels, self._rules.max_pixels
        if source.is_list:
            return FrameList(
                source.data,
                sampling,
                max_frame_pixels=of_frame,
                max_pixels=of_video,
                background=background,
            )
        if self._decoders is None:
            raise UnreadableImage(
                "this server takes videos as lists of frames only (data:video/jpeg;base64,...): for files it "
                "lacks the extra `video`"
            )
        return VideoFile(
            source.data, sampling, self._decoders, max_frame_pixels=of_frame, max_pixels=of_video
        )
