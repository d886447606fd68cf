"""Which processor of videos a model's files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.multimodal.item import UnsupportedProcessor
from render_tier.multimodal.processors.choice import agree, image_size
from render_tier.multimodal.processors.internvl_chat import InternVLChatVideoProcessor
from render_tier.multimodal.processors.internvl_video import INTERNVL, InternVLVideoProcessor
from render_tier.multimodal.processors.qwen_video import QWEN2_VL, QWEN3_VL, QwenVideoProcessor
from render_tier.multimodal.processors.video import VideoProcessor

Json = Mapping[str, Any]
_NAMES = {
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_VL,
    "qwen3_vl": QWEN3_VL,
    "qwen3_vl_moe": QWEN3_VL,
    "qwen3_5": QWEN3_VL,
    "qwen3_5_moe": QWEN3_VL,
    "internvl": INTERNVL,
}
"""By config.json's `model_type`."""
_SAMPLING: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    # What else they say of sampling is not asked: vLLM's loaders have chosen the frames.
    QWEN2_VL: {"do_sample_frames": (None, False)},
    INTERNVL: {"do_sample_frames": (None, False)},
    QWEN3_VL: {"fps": (None, 2), "num_frames": (None,), "min_frames": (None, 4), "max_frames": (None, 768)},
}
"""The values of settings with which a processor leaves the frames as they are."""


def video_processor(
    config: Json, files: tuple[Json | None, Json | None, Json | None], overrides: Json
) -> VideoProcessor:
    """The processor of videos of the model with that config.json.

    ``files``: processor_config.json, video_preprocessor_config.json and preprocessor_config.json, of which
    the first one that says something of videos counts; without any of the former two videos have the
    settings of images. Raises UnsupportedProcessor.
    """
    whole, own, of_images = files
    given: Json = (whole or {}).get("video_processor") or own or of_images or {}
    model_type = config.get("model_type")
    if model_type == "internvl_chat":
        return InternVLChatVideoProcessor.load(config)
    name = _NAMES.get(str(model_type))
    declared = given.get("video_processor_type") or name
    if name is None or declared != name:
        raise UnsupportedProcessor(
            f"videos of models of type {model_type!r} cannot be processed with {declared!r}"
        )
    for key, left_alone in _SAMPLING[name].items():
        if given.get(key) not in left_alone:
            raise UnsupportedProcessor(f"{name}: videos cannot be processed with {key}={given[key]!r}")
    if name == INTERNVL:
        images: Json = of_images or (whole or {}).get("image_processor") or {}
        processor = InternVLVideoProcessor.load(given, {"size": images.get("size")}, overrides)
        agree("frames' (height, width)", processor.size, image_size(config))
        return processor
    return QwenVideoProcessor.load(name, given, overrides)
