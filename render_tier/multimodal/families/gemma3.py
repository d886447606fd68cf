"""Gemma 3: a picture is always as many tokens, between markers and line breaks. With pan and scan a long
image is several: the whole one, and crops, with words that say so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Encode, Family, Field, Replacement, required_id
from render_tier.multimodal.item import ImageLayout

KEPT = 4
"""Numbers of crops whose tokens are kept."""


def gemma3(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> Family:
    count = int(config.get("mm_tokens_per_image", 256))
    begin, soft, end = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
    soft_id = required_id(vocabulary, soft)
    picture = f"\n\n{begin}{soft * count}{end}\n\n"
    ids = tuple(encode(picture))
    whole = Replacement(ids, ids.index(soft_id), count)

    @lru_cache(maxsize=KEPT)
    def with_crops(crops: int) -> Replacement:
        said = f"Here is the original image {picture} and here are some crops to help you see better "
        ids = encode(said + " ".join([picture] * crops))
        first, end = ids.index(soft_id), len(ids) - ids[::-1].index(soft_id)
        mask = tuple(token == soft_id for token in ids[first:end])
        return Replacement(tuple(ids), first, end - first, mask)

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        return whole if layout.tiles == 1 else with_crops(layout.tiles - 1)

    lines = [required_id(vocabulary, "\n" * length) for length in range(1, 5)]
    return Family(
        mark=begin,
        token=begin,
        token_id=required_id(vocabulary, begin),
        fields={"pixel_values": Field("flat"), "num_patches": Field("batched", keep_on_cpu=True)},
        replacement=replacement,
        frames=1,
        engine_normalizes=False,
        joined={
            (lines[0], lines[1]): lines[2],
            (lines[1], lines[0]): lines[2],
            (lines[1], lines[1]): lines[3],
        },
    )
