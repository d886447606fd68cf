"""What a request says of how its videos are read and processed, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from render_tier.multimodal.decoding import BACKGROUND, Color
from render_tier.multimodal.options import PROCESSOR, READING, OptionRefused, processor_options
from render_tier.multimodal.processors.request_settings import Kind
from render_tier.multimodal.videos.sampling import MOST_FRAMES, Facts, Rule, Sampling

FRAMES, RATE = "num_frames", "fps"
SLOWEST, FASTEST = 0.001, 240
"""Frames a second."""


@dataclass(frozen=True)
class VideoOptions:
    processor: Mapping[str, Any] = field(default_factory=dict)
    """`mm_processor_kwargs` that count for videos, as the client wrote them: the order of names counts in
    vLLM's hashes."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """`media_io_kwargs` of videos, likewise."""
    background: Color = BACKGROUND
    """What transparency is laid on in frames that are images' files (`media_io_kwargs` of images)."""

    def __bool__(self) -> bool:
        return bool(self.processor or self.reading or self.background != BACKGROUND)

    def sampling(self, rule: Rule) -> Sampling:
        usual = Sampling(rule)
        rate = self.reading.get(RATE)
        return Sampling(
            rule,
            file_rate=rate,
            most_frames=self.reading.get(FRAMES, usual.most_frames),
            listed_rate=usual.listed_rate if rate is None else float(rate),
        )

    @property
    def hash_factors(self) -> dict[str, Any]:
        """What is part of a video's hash beside the video, by vLLM's names."""
        reading = {READING: {"video": self.reading}} if self.reading else {}
        return {**reading, **({PROCESSOR: self.processor} if self.processor else {})}

    def factors_of_file(self, facts: Facts) -> dict[str, Any]:
        """As `hash_factors`, where the file is hashed and not its frames: with what else decides on them,
        which vLLM leaves out."""
        return self.factors_of_name if facts.of_list else self.hash_factors

    @property
    def factors_of_name(self) -> dict[str, Any]:
        """Likewise, of a video that may be a list of frames."""
        if self.background == BACKGROUND:
            return self.hash_factors
        return {**self.hash_factors, "background": self.background}

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(msgspec.json.encode(self.hash_factors)).digest()


def reading_over(usual: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's `media_io_kwargs` of videos with a request's laid over them: one that says how many
    frames and not how fast, or the other way round, has nothing of the operator's other number."""
    kept = dict(usual)
    for said, other in ((FRAMES, RATE), (RATE, FRAMES)):
        if said in asked and other not in asked:
            kept.pop(other, None)
    return {**kept, **asked}


def video_options(
    mm_processor_kwargs: Mapping[str, Any],
    reading: Mapping[str, Any],
    background: Color,
    *,
    known: Mapping[str, Kind],
    of_images: Collection[str],
    most: int,
) -> VideoOptions:
    """``known``: settings of the processor of videos. ``of_images``: those of the model's image processor,
    which are not looked at here. ``most``: largest number in them. Raises OptionRefused."""
    asked = processor_options(mm_processor_kwargs, "video", known, elsewhere=of_images, most=most)
    for name, value in reading.items():
        param = f"{READING}.video.{name[:100]}"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == FRAMES:
            if not number or not isinstance(value, int) or not 1 <= value <= MOST_FRAMES:
                raise OptionRefused(param, f"a whole number from 1 to {MOST_FRAMES} is needed")
        elif name == RATE:
            if not number or not SLOWEST <= value <= FASTEST:
                raise OptionRefused(param, f"a number from {SLOWEST} to {FASTEST} is needed")
        else:
            raise OptionRefused(param, f"not known here; {FRAMES} and {RATE} are")
    return VideoOptions(asked, dict(reading), background)
