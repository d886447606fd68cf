"""InternVL (OpenGVLab's format): an image is as many tokens as its tiles have, between two markers.
Its place is `<image>` in templates and messages, which is no token of most of these tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Encode, Family, Field, Replacement, Spelled, required_id
from render_tier.multimodal.item import ImageLayout

PLACE, CONTEXT = "<image>", "<IMG_CONTEXT>"


def internvl_chat(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> Family:
    patch = int(config["vision_config"].get("patch_size", 14))
    ratio = float(config.get("downsample_ratio", 0.5))
    begin, context, end = (required_id(vocabulary, name) for name in ("<img>", CONTEXT, "</img>"))
    place = vocabulary.token_id(PLACE)

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        of_tile = int((layout.width // patch) ** 2 * ratio**2)
        count = of_tile * layout.tiles
        return Replacement((begin, *(context,) * count, end), 1, count)

    return Family(
        mark=PLACE,
        token=PLACE,
        token_id=context if place is None else place,
        fields={
            "pixel_values_flat": Field("flat"),
            "image_num_patches": Field("batched", keep_on_cpu=True),
            "image_token_id": Field("shared", keep_on_cpu=True, value=context),
        },
        replacement=replacement,
        frames=1,
        engine_normalizes=False,
        joined={},
        spelled=Spelled(tuple(encode(PLACE)), CONTEXT, context) if place is None else None,
    )
