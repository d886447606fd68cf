"""The vision-language models whose images are taken here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.model.mistral_format import MODEL_TYPE
from render_tier.multimodal.families.family import Encode, Family
from render_tier.multimodal.families.gemma3 import gemma3
from render_tier.multimodal.families.internvl import internvl, internvl_video
from render_tier.multimodal.families.internvl_chat import internvl_chat, internvl_chat_video
from render_tier.multimodal.families.llava import LLAVA_TOWERS, llava, llava_next
from render_tier.multimodal.families.mistral import mistral
from render_tier.multimodal.families.qwen_vl import qwen_video, qwen_vl
from render_tier.multimodal.families.video import VideoForm

QWEN_TYPES = frozenset(
    {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
)  # fmt: skip


def family_of(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> Family | None:
    """The family of a model's config.json; None for one whose images are not taken here. ``encode``: text to
    IDs, without special tokens put around it. Raises ModelLoadError for a tokenizer without the tokens."""
    model_type = config.get("model_type")
    if not isinstance(config.get("vision_config"), dict):
        return None
    if model_type in QWEN_TYPES:
        return qwen_vl(config, vocabulary)
    if model_type == "gemma3":
        return gemma3(config, vocabulary, encode)
    if model_type == "internvl":
        return internvl(config, vocabulary)
    if model_type == "internvl_chat":
        return internvl_chat(config, vocabulary, encode)
    vision_type = config["vision_config"].get("model_type", "clip_vision_model")
    if model_type in ("mistral3", MODEL_TYPE) or (model_type == "llava" and vision_type == "pixtral"):
        return mistral(config, vocabulary)
    tower = LLAVA_TOWERS.get(vision_type)
    if model_type == "llava" and tower is not None:
        return llava(config, vocabulary, tower)
    if model_type == "llava_next" and tower is not None:
        return llava_next(config, vocabulary, tower)
    return None


def video_form_of(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> VideoForm | None:
    """As `family_of`, of videos."""
    model_type = config.get("model_type")
    if not isinstance(config.get("vision_config"), dict):
        return None
    if model_type in QWEN_TYPES:
        return qwen_video(config, vocabulary, encode)
    if model_type == "internvl":
        return internvl_video(config, vocabulary, encode)
    if model_type == "internvl_chat":
        return internvl_chat_video(config, vocabulary, encode)
    return None
