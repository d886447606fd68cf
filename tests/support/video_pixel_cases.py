"""Videos with which processors of videos are compared, and what of their results is compared.

Imported by the reference's program too, in whose environment there is nothing of this project's but numpy.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.pixel_cases import AS_BYTES, CLIP, HALF, IMAGENET, Pixels, image

RECORDED = Path(__file__).resolve().parents[1] / "conformance" / "data" / "video_pixels.json"
"""What the reference makes of `cases()`."""
SETTINGS: dict[str, dict[str, Any]] = {
    "Qwen2VLVideoProcessor": {"min_pixels": 3136, "max_pixels": 50176, **CLIP},
    "Qwen3VLVideoProcessor": {"size": {"shortest_edge": 4096, "longest_edge": 400_000}, **HALF},
    "InternVLVideoProcessor": {"size": {"height": 112, "width": 140}, **IMAGENET},
}
"""By the processor's name."""
SHAPES = (
    *((4, 64, 48), (5, 31, 90), (3, 640, 360), (7, 200, 33), (2, 28, 28), (2, 17, 40), (32, 320, 240)),
    *((6, 1, 9), (2, 900, 4), (1, 40, 40), (9, 32, 32)),
)
"""(frames, width, height): also those that a processor refuses."""


@dataclass(frozen=True)
class VideoCase:
    processor: str
    as_bytes: bool
    frames: int
    width: int
    height: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def title(self) -> str:
        form = "bytes" if self.as_bytes else "floats"
        return f"{self.processor} {form} {self.frames} of {self.width}x{self.height}"

    @property
    def settings(self) -> dict[str, Any]:
        return {**SETTINGS[self.processor], **(AS_BYTES if self.as_bytes else {})}

    def video(self) -> Pixels:
        """(frames, height, width, 3): no two frames are the same."""
        noise, extremes = (image(kind, self.width, self.height) for kind in ("noise", "extremes"))
        frames = [np.roll(noise if number % 2 else extremes, number, 0) for number in range(self.frames)]
        return np.stack([frame ^ np.uint8(number) for number, frame in enumerate(frames)])


def cases() -> Iterator[VideoCase]:
    for name in SETTINGS:
        for number, shape in enumerate(SHAPES):
            yield VideoCase(name, number % 2 == 1, *shape)


def drawn(seed: int, count: int) -> Iterator[VideoCase]:
    choose = random.Random(seed)
    for _ in range(count):
        # transformers takes frames 1 or 3 pixels high for such whose channels come first.
        sides = (choose.randint(4, choose.choice([30, 300, 700])) for _ in range(2))
        yield VideoCase(choose.choice(list(SETTINGS)), choose.random() < 0.5, choose.randint(1, 9), *sides)
