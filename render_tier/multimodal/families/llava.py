"""Llava 1.5 and LLaVA-NeXT: an image is as many tokens as there are patches of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Family, Field, Replacement, required_id
from render_tier.multimodal.item import ImageLayout


@dataclass(frozen=True)
class Tower:
    """A vision model of Llava's."""

    class_tokens: int
    """How many embeddings there are beside those of patches."""
    patch: int
    """Side of a patch where config.json does not say."""


LLAVA_TOWERS: Mapping[str, Tower] = {
    "clip_vision_model": Tower(class_tokens=1, patch=32),
    "siglip_vision_model": Tower(class_tokens=0, patch=16),
}


def llava(config: Mapping[str, Any], vocabulary: Vocabulary, tower: Tower) -> Family:
    patch = int(config["vision_config"].get("patch_size", tower.patch))
    extra = tower.class_tokens
    if config.get("vision_feature_select_strategy", "default") == "default":
        extra -= 1  # the first is left out, which is that of the class where there is one
    pad = config.get("image_token_index", config.get("image_token_id"))
    token = "<image>"
    if pad is None:
        pad = required_id(vocabulary, token)
    pad_id = int(pad)

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        count = (layout.width // patch) * (layout.height // patch) + extra
        return Replacement((pad_id,) * count, 0, count)

    return Family(
        mark=token,
        token=token,
        token_id=pad_id,
        fields={"pixel_values": Field("batched")},
        replacement=replacement,
        frames=1,
        engine_normalizes=False,
        joined={},
    )


def llava_next(config: Mapping[str, Any], vocabulary: Vocabulary, tower: Tower) -> Family:
    """As Llava for the overview; then the patches of the grid of tiles, without those that show nothing of
    the image, and one more at the end of each line of them."""
    plain = llava(config, vocabulary, tower)
    patch = int(config["vision_config"].get("patch_size", tower.patch))

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        overview = plain.replacement(layout, width, height).count
        columns, lines = unpadded(
            layout.width // patch * layout.tile_columns,
            layout.height // patch * layout.tile_rows,
            width,
            height,
        )
        count = overview + lines * (columns + 1)
        return Replacement((plain.token_id,) * count, 0, count)

    fields = {"pixel_values": Field("batched"), "image_sizes": Field("batched", keep_on_cpu=True)}
    return replace(plain, fields=fields, replacement=replacement)


def unpadded(columns: int, lines: int, width: int, height: int) -> tuple[int, int]:
    """(columns, lines) of a grid of patches that an image of that width and height is on when it is fitted
    into the grid's middle: as much is left out on both sides, so that of an odd rest one stays.

    transformers computes this in floats rounded to 7 digits, with the same result for sizes below 2**24.
    """
    if width * lines > columns * height:
        return columns, lines - (lines - height * columns // width) // 2 * 2
    return columns - (columns - width * lines // height) // 2 * 2, lines
