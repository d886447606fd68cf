"""Pixtral and Mistral 3: an image is as many tokens as it has patches, with a mark at the end of each line of
them. The embeddings are in several runs, so that an engine must be told by a mask where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.model.mistral_format import MODEL_TYPE
from render_tier.multimodal.families.family import Family, Field, Replacement, required_id
from render_tier.multimodal.item import ImageLayout


def mistral(config: Mapping[str, Any], vocabulary: Vocabulary) -> Family:
    """Mistral 3 merges patches, and its engines normalize pixels; Pixtral's are Llava's. In Mistral's own
    format both are Pixtral."""
    is_third, is_own = config["model_type"] == "mistral3", config["model_type"] == MODEL_TYPE
    merged = int(config.get("spatial_merge_size", 2)) if is_third or is_own else 1
    side = int(config["vision_config"].get("patch_size", 16)) * merged
    token = "[IMG]"
    image, line_end, end = (required_id(vocabulary, name) for name in (token, "[IMG_BREAK]", "[IMG_END]"))

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        columns, lines = layout.width // side, layout.height // side
        ids = (*((*(image,) * columns, line_end) * lines)[:-1], end)
        return Replacement(ids, 0, len(ids), mask=((*(True,) * columns, False) * lines))

    return Family(
        mark=token,
        token=token,
        token_id=image,
        fields={"pixel_values": Field("batched")},
        replacement=replacement,
        frames=1,
        engine_normalizes=is_third,
        joined={},
        in_runs=True,
        is_own_format=is_own,
    )
