"""The settings of a processor: those that a request may bring, which decide how many pixels its media become,
and those that an operator may say too.

The latter are what the model was trained with; changed by a request, engines would take its items for others
than they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from render_tier.multimodal.item import ImageProcessor
from render_tier.multimodal.processors.gemma3 import Gemma3Processor
from render_tier.multimodal.processors.got_ocr2 import GotOcr2Processor
from render_tier.multimodal.processors.internvl_chat import (
    InternVLChatProcessor,
    InternVLChatVideoProcessor,
)
from render_tier.multimodal.processors.llava_next import LlavaNextProcessor
from render_tier.multimodal.processors.pixtral import PixtralProcessor
from render_tier.multimodal.processors.qwen2_vl import Qwen2VLProcessor
from render_tier.multimodal.processors.qwen_video import QwenVideoProcessor
from render_tier.multimodal.processors.video import VideoProcessor

Kind = Literal["count", "flag", "ratio", "size"]

_QWEN_PIXELS: Mapping[str, Kind] = {"min_pixels": "count", "max_pixels": "count", "size": "size"}
_SETTINGS: Mapping[type, Mapping[str, Kind]] = {
    Gemma3Processor: {
        "do_pan_and_scan": "flag",
        "pan_and_scan_min_crop_size": "count",
        "pan_and_scan_max_num_crops": "count",
        "pan_and_scan_min_ratio_to_activate": "ratio",
    },
    Qwen2VLProcessor: _QWEN_PIXELS,
    QwenVideoProcessor: _QWEN_PIXELS,
    GotOcr2Processor: {"crop_to_patches": "flag", "min_patches": "count", "max_patches": "count"},
    InternVLChatProcessor: {
        "min_dynamic_patch": "count",
        "max_dynamic_patch": "count",
        "dynamic_image_size": "flag",
        "use_thumbnail": "flag",
    },
    PixtralProcessor: {"size": "size"},
}
_STEPS = frozenset(
    {
        *("do_resize", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
        *("size", "do_center_crop", "crop_size", "do_pad"),
    }
)
"""What all that are transformers' have, or refuse by its value."""
_QWEN_PATCHES = frozenset({"patch_size", "temporal_patch_size", "merge_size"})
_OTHERS: Mapping[type, frozenset[str]] = {
    LlavaNextProcessor: frozenset({"image_grid_pinpoints"}),
    Qwen2VLProcessor: _QWEN_PATCHES,
    QwenVideoProcessor: _QWEN_PATCHES,
}


def settings_of(processor: ImageProcessor | VideoProcessor) -> Mapping[str, Kind]:
    """By name, what kind of value it takes."""
    return _SETTINGS.get(type(processor), {})


def all_settings_of(processor: ImageProcessor | VideoProcessor) -> frozenset[str]:
    """The names of those that an operator may say."""
    own = isinstance(processor, InternVLChatProcessor | InternVLChatVideoProcessor)
    steps = frozenset() if own else _STEPS
    return steps | settings_of(processor).keys() | _OTHERS.get(type(processor), frozenset())
