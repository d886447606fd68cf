"""Gemma 3: an image is always as many tokens, between markers and line breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Family, Field, Replacement, required_id

Encode = Callable[[str], list[int]]


def gemma3(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> Family:
    count = int(config.get("mm_tokens_per_image", 256))
    begin, soft, end = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
    soft_id = required_id(vocabulary, soft)
    ids = tuple(encode(f"\n\n{begin}{soft * count}{end}\n\n"))
    whole = Replacement(ids, ids.index(soft_id), count)
    lines = [required_id(vocabulary, "\n" * length) for length in range(1, 5)]
    return Family(
        mark=begin,
        token=begin,
        token_id=required_id(vocabulary, begin),
        fields={"pixel_values": Field("flat"), "num_patches": Field("batched", keep_on_cpu=True)},
        replacement=lambda layout, width, height: whole,
        frames=1,
        engine_normalizes=False,
        joined={
            (lines[0], lines[1]): lines[2],
            (lines[1], lines[0]): lines[2],
            (lines[1], lines[1]): lines[3],
        },
    )
