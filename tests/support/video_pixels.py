"""What our processors make of the videos of `video_pixel_cases`."""

from __future__ import annotations

import numpy as np

from render_tier.multimodal.item import ImageRefused
from render_tier.multimodal.processors.qwen_video import QwenVideoProcessor
from tests.support.pixel_cases import summary
from tests.support.video_pixel_cases import VideoCase


def ours(case: VideoCase) -> dict[str, list[object]] | None:
    """None where the processor refuses the video."""
    processor = QwenVideoProcessor.load(case.processor, case.settings)
    try:
        layout = processor.layout(case.frames, case.width, case.height)
    except ImageRefused:
        return None
    pixels = processor.process(case.video(), layout)
    grid = np.array(processor.grid(layout), np.int64)
    return summary({"pixel_values_videos": pixels.reshape(-1, pixels.shape[-1]), "video_grid_thw": grid})
