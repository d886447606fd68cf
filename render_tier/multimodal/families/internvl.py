"""InternVL (transformers' format): an image is as many tokens as its tiles have, between two markers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Family, Field, Replacement, required_id
from render_tier.multimodal.item import ImageLayout


def internvl(config: Mapping[str, Any], vocabulary: Vocabulary) -> Family:
    vision = config["vision_config"]
    patch = _side(vision.get("patch_size", 14))
    ratio = float(config.get("downsample_ratio", 0.5))
    token = "<IMG_CONTEXT>"
    begin, context, end = (required_id(vocabulary, name) for name in ("<img>", token, "</img>"))

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        of_tile = int((layout.width // patch) * (layout.height // patch) * ratio**2)
        count = of_tile * layout.tiles
        return Replacement((begin, *(context,) * count, end), 1, count)

    return Family(
        mark=token,
        token=token,
        token_id=context,
        fields={
            "pixel_values": Field("flat"),
            "image_num_patches": Field("batched", keep_on_cpu=True),
            "image_token_id": Field("shared", keep_on_cpu=True, value=context),
        },
        replacement=replacement,
        frames=1,
        engine_normalizes=False,
        joined={},
    )


def _side(size: Any) -> int:
    """Of a square that is given by one number or as [height, width]."""
    return int(size[0] if isinstance(size, list) else size)
