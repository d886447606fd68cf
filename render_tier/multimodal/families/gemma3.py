"""Gemma 3: a picture is always as many tokens, between markers and line breaks. With pan and scan a long
image is several: the whole one, and crops, with words that say so.

vLLM has one item for an image with crops, whose place is all of that, and a mask that does not travel with a
request. Here each picture is an item of its own, and an image to engines: its embeddings, and which of them
look at each other, are those of vLLM's one item.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Encode, Family, Field, Replacement, required_id
from render_tier.multimodal.item import Arrays, ImageLayout

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
        ids = tuple(encode(said + " ".join([picture] * crops)))
        first, *later = (
            place for place, token in enumerate(ids) if token == soft_id and ids[place - 1] != soft_id
        )
        return Replacement(ids, first, count, later=tuple(later))

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
        items=_pictures,
    )


def _pictures(arrays: Arrays) -> list[Arrays]:
    one = np.array(1, np.int64)
    return [{"pixel_values": picture[None], "num_patches": one} for picture in arrays["pixel_values"]]
