"""Qwen-VL: an image is as many tokens as it has patches after merging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Family, Field, Replacement, required_id
from render_tier.multimodal.item import ImageLayout


def qwen_vl(config: Mapping[str, Any], vocabulary: Vocabulary) -> Family:
    vision = config["vision_config"]
    merge = int(vision.get("spatial_merge_size", 2))
    default_patch = 16 if str(config["model_type"]).startswith("qwen3") else 14
    side = int(vision.get("patch_size", default_patch)) * merge
    token = "<|image_pad|>"
    pad = required_id(vocabulary, token)

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        count = (layout.width // side) * (layout.height // side)
        return Replacement((pad,) * count, 0, count)

    return Family(
        mark=f"<|vision_start|>{token}<|vision_end|>",
        token=token,
        token_id=pad,
        fields={"pixel_values": Field("flat"), "image_grid_thw": Field("batched", keep_on_cpu=True)},
        replacement=replacement,
        frames=int(vision.get("temporal_patch_size", 2)),
        engine_normalizes=True,
        joined={},
    )
