"""The settings of a processor that a request may bring: those that decide how many pixels an image becomes.

Others are what the model was trained with; changed, engines would take its items for others than they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from render_tier.multimodal.item import ImageProcessor
from render_tier.multimodal.processors.gemma3 import Gemma3Processor
from render_tier.multimodal.processors.got_ocr2 import GotOcr2Processor
from render_tier.multimodal.processors.pixtral import PixtralProcessor
from render_tier.multimodal.processors.qwen2_vl import Qwen2VLProcessor

Kind = Literal["count", "flag", "ratio", "size"]

_SETTINGS: Mapping[type, Mapping[str, Kind]] = {
    Gemma3Processor: {
        "do_pan_and_scan": "flag",
        "pan_and_scan_min_crop_size": "count",
        "pan_and_scan_max_num_crops": "count",
        "pan_and_scan_min_ratio_to_activate": "ratio",
    },
    Qwen2VLProcessor: {"min_pixels": "count", "max_pixels": "count", "size": "size"},
    GotOcr2Processor: {"crop_to_patches": "flag", "min_patches": "count", "max_patches": "count"},
    PixtralProcessor: {"size": "size"},
}


def settings_of(processor: ImageProcessor) -> Mapping[str, Kind]:
    """By name, what kind of value it takes."""
    return _SETTINGS.get(type(processor), {})
