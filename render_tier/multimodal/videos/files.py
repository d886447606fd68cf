"""A video's file, read by a process of its own."""

from __future__ import annotations

import math
from collections.abc import Generator

from render_tier.multimodal.decoding import LONGEST_SIDE, UnreadableImage
from render_tier.multimodal.videos.decoder_process import DecoderPool
from render_tier.multimodal.videos.opened import Frame, FramesMissing, check_pixels
from render_tier.multimodal.videos.sampling import Facts, Sampling, UnknownRate, chosen, file_facts

MOST_COUNTED = 1 << 24


def is_container(data: bytes) -> bool:
    """Whether it begins as MP4, QuickTime, 3GP, Matroska, WebM or AVI do. Others are not given to the
    decoders: some formats name further files, and addresses, that they would open. What only begins so is
    read as one of these all the same (`decoder_process.SET`)."""
    return (
        data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
        or data.startswith(b"\x1aE\xdf\xa3")
        or (data.startswith(b"RIFF") and data[8:12] == b"AVI ")
    )


class VideoFile:
    """A file of which the header has been read."""

    def __init__(
        self,
        data: bytes,
        sampling: Sampling,
        decoders: DecoderPool,
        *,
        max_frame_pixels: int,
        max_pixels: int,
    ) -> None:
        """Raises UnreadableImage and ImageTooLarge."""
        if not is_container(data):
            raise UnreadableImage("not a video of a known format: MP4, QuickTime, Matroska, WebM and AVI are")
        self._data = data
        self._rule = sampling.rule
        self._decoders = decoders
        about = decoders.about(data)
        self.size: tuple[int, int] = about["width"], about["height"]
        total, rate = about["total"], float(about["rate"])
        if not all(0 < side <= LONGEST_SIDE for side in self.size):
            raise UnreadableImage("the video's header does not say how large its frames are")
        if not 0 < total <= MOST_COUNTED:
            raise UnreadableImage("the video's header does not say how many frames it has")
        if not math.isfinite(rate) or rate < 0:
            rate = 0.0
        try:
            indices = chosen(sampling, total, rate)
        except UnknownRate:
            raise UnreadableImage("the video's header does not say how many frames a second it has") from None
        if not indices:
            raise UnreadableImage("a video of one frame; the model takes at least two")
        check_pixels(len(indices), *self.size, of_frame=max_frame_pixels, of_video=max_pixels)
        self._total, self._rate = total, rate
        self.planned = file_facts(self._rule, total, rate, indices)

    def frames(self, facts: Facts) -> Generator[Frame, None, None]:
        wanted = list(facts.indices)
        read = yield from self._decoders.frames(self._data, wanted, *self.size)
        if read != wanted:
            raise FramesMissing(file_facts(self._rule, self._total, self._rate, read))
