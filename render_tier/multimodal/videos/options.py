"""What a request says of how its videos are read (`media_io_kwargs.video`), checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from render_tier.multimodal.options import READING, OptionRefused
from render_tier.multimodal.videos.sampling import MOST_FRAMES, Rule, Sampling

FRAMES, RATE = "num_frames", "fps"
SLOWEST, FASTEST = 0.001, 240
"""Frames a second."""


@dataclass(frozen=True)
class VideoOptions:
    reading: Mapping[str, Any] = field(default_factory=dict)
    """As the client wrote it: the order of names counts in vLLM's hashes."""

    def __bool__(self) -> bool:
        return bool(self.reading)

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
        return {READING: {"video": self.reading}} if self.reading else {}

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(msgspec.json.encode(self.hash_factors)).digest()


def video_options(reading: Mapping[str, Any]) -> VideoOptions:
    """Raises OptionRefused."""
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
    return VideoOptions(dict(reading))
