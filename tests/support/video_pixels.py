"""What our processors make of the videos of `video_pixel_cases`."""

from __future__ import annotations

from render_tier.multimodal.item import ImageRefused
from render_tier.multimodal.processors.internvl_video import INTERNVL, InternVLVideoProcessor
from render_tier.multimodal.processors.qwen_video import QwenVideoProcessor
from render_tier.multimodal.processors.video import VideoProcessor
from tests.support.pixel_cases import summary
from tests.support.video_pixel_cases import VideoCase


def ours(case: VideoCase) -> dict[str, list[object]] | None:
    """None where the processor refuses the video."""
    processor: VideoProcessor
    if case.processor == INTERNVL:
        processor = InternVLVideoProcessor.load(case.settings)
    else:
        processor = QwenVideoProcessor.load(case.processor, case.settings)
    try:
        layout = processor.layout(case.frames, case.width, case.height)
    except ImageRefused:
        return None
    return summary(processor.process(case.video(), layout))
