"""Which processor a model's files name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from render_tier.multimodal.item import ImageProcessor, UnsupportedProcessor
from render_tier.multimodal.processors.gemma3 import Gemma3Processor
from render_tier.multimodal.processors.got_ocr2 import GotOcr2Processor
from render_tier.multimodal.processors.internvl_chat import InternVLChatProcessor
from render_tier.multimodal.processors.llava_next import LlavaNextProcessor
from render_tier.multimodal.processors.mistral_common import MistralCommonProcessor
from render_tier.multimodal.processors.pixtral import PixtralProcessor
from render_tier.multimodal.processors.qwen2_vl import Qwen2VLProcessor
from render_tier.multimodal.processors.standard import (
    CLIP_DEFAULTS,
    SIGLIP_DEFAULTS,
    StandardProcessor,
)

Json = Mapping[str, Any]

_NAMES = {
    "gemma3": ("Gemma3ImageProcessor",),
    "internvl": ("GotOcr2ImageProcessor",),
    "llava": (
        "LlavaImageProcessor",
        "CLIPImageProcessor",
        "PixtralImageProcessor",
        "SiglipImageProcessor",
    ),
    "llava_next": ("LlavaNextImageProcessor",),
    "mistral3": ("PixtralImageProcessor",),
    "qwen2_vl": ("Qwen2VLImageProcessor",),
    "qwen2_5_vl": ("Qwen2VLImageProcessor",),
    "qwen3_vl": ("Qwen2VLImageProcessor",),
    "qwen3_vl_moe": ("Qwen2VLImageProcessor",),
    "qwen3_5": ("Qwen2VLImageProcessor",),
    "qwen3_5_moe": ("Qwen2VLImageProcessor",),
}
"""By config.json's `model_type`, the image processors it can have; a file that names none has the first."""


def image_processor(
    config: Json,
    preprocessor_config: Json,
    overrides: Json | None = None,
    processor_config: Json | None = None,
) -> ImageProcessor:
    """The processor of the model with that config.json and preprocessor_config.json.

    `overrides` are a request's or the operator's `mm_processor_kwargs`; `processor_config` is
    processor_config.json, where there is one (newer models keep all settings there). Raises
    UnsupportedProcessor, naming the model's type and its image processor.
    """
    whole = processor_config or {}
    given: Json = preprocessor_config or whole.get("image_processor") or {}
    model_type = config.get("model_type")
    if model_type == "internvl_chat":
        return InternVLChatProcessor.load(config, overrides or {})
    if model_type == "pixtral":  # of Mistral's own format
        return MistralCommonProcessor.load(config, overrides or {})
    if model_type not in _NAMES:
        raise UnsupportedProcessor(f"images of models of type {model_type!r} cannot be processed")
    names = _NAMES[model_type]
    declared = given.get("image_processor_type") or given.get("feature_extractor_type") or names[0]
    # The files' older and newer names of one processor: "...Fast" is what the plain name means today.
    name = str(declared).removesuffix("Fast")
    if "image_processor_type" not in given:
        name = name.replace("FeatureExtractor", "ImageProcessor")
    if name not in names:
        raise UnsupportedProcessor(
            f"images of models of type {model_type!r} cannot be processed with {declared!r}"
        )
    return _LOADERS[name](config, given, overrides or {}, whole)


def _pixtral(config: Json, given: Json, overrides: Json, whole: Json) -> ImageProcessor:
    """PixtralProcessor's own patch size counts; a file without it is of a model whose config.json has it."""
    patch = whole.get("patch_size") or (config.get("vision_config") or {}).get("patch_size") or 16
    merge = whole.get("spatial_merge_size") or config.get("spatial_merge_size") or 1
    if not (isinstance(patch, int) and isinstance(merge, int) and patch * merge > 0):
        raise UnsupportedProcessor(
            f"images cannot be processed with patch_size={patch!r}, spatial_merge_size={merge!r}"
        )
    processor = PixtralProcessor.load(patch * merge, given, overrides)
    most = (config.get("vision_config") or {}).get("image_size")
    if isinstance(most, int) and max(processor.most_rows, processor.most_columns) > most:
        raise UnsupportedProcessor(f"the image processor's size is above the model's image_size={most}")
    return processor


def _got_ocr2(config: Json, given: Json, overrides: Json, whole: Json) -> ImageProcessor:
    # InternVLProcessor asks for tiles, whatever the file has; a call's arguments can say no.
    tiled = overrides.get("crop_to_patches")
    processor = GotOcr2Processor.load(True if tiled is None else bool(tiled), given, overrides)
    agree("tiles' (height, width)", (processor.tile_height, processor.tile_width), image_size(config))
    return processor


def _llava_next(config: Json, given: Json, overrides: Json, whole: Json) -> ImageProcessor:
    processor = LlavaNextProcessor.load(given, overrides)
    agree("tiles' (height, width)", (processor.side, processor.side), image_size(config))
    resolutions = config.get("image_grid_pinpoints")
    if resolutions is not None:
        agree("image_grid_pinpoints", processor.resolutions, tuple(map(tuple, resolutions)))
    return processor


def image_size(config: Json) -> tuple[int, int] | None:
    """(height, width) that the vision model takes, where config.json says it."""
    size = (config.get("vision_config") or {}).get("image_size")
    if isinstance(size, list) and len(size) == 2:
        return (size[0], size[1])
    return None if size is None else (size, size)


def agree(what: str, made: object, taken: object) -> None:
    """Refuse a processor whose tiles an engine would take for others than they are."""
    if taken is not None and made != taken:
        raise UnsupportedProcessor(f"the image processor's {what} are {made}, the model's {taken}")


_LOADERS: dict[str, Callable[[Json, Json, Json, Json], ImageProcessor]] = {
    "CLIPImageProcessor": lambda config, given, overrides, whole: StandardProcessor.load(
        "CLIPImageProcessor", CLIP_DEFAULTS, given, overrides
    ),
    "LlavaImageProcessor": lambda config, given, overrides, whole: StandardProcessor.load(
        "LlavaImageProcessor", CLIP_DEFAULTS, given, overrides
    ),
    "SiglipImageProcessor": lambda config, given, overrides, whole: StandardProcessor.load(
        "SiglipImageProcessor", SIGLIP_DEFAULTS, given, overrides
    ),
    "Gemma3ImageProcessor": lambda config, given, overrides, whole: Gemma3Processor.load(given, overrides),
    "PixtralImageProcessor": _pixtral,
    "GotOcr2ImageProcessor": _got_ocr2,
    "LlavaNextImageProcessor": _llava_next,
    "Qwen2VLImageProcessor": lambda config, given, overrides, whole: Qwen2VLProcessor.load(given, overrides),
}
