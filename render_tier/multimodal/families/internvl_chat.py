"""InternVL (OpenGVLab's format): an image is as many tokens as its tiles have, between two markers; a video
is each of its frames, with the tokens of one tile.

Their places are `<image>` and `<video>` in templates and messages, which are no tokens of most of these
tokenizers. As in transformers' format each frame is an item of its own, and an image to engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from render_tier.core.vocabulary import Vocabulary
from render_tier.model.context_length import text_config
from render_tier.multimodal.families.family import Encode, Family, Replacement, Spelled, required_id
from render_tier.multimodal.families.internvl import (
    BEGIN,
    CONTEXT,
    END,
    VIDEO,
    frames_as_images,
    tile_fields,
)
from render_tier.multimodal.families.video import VideoForm, VideoPlaces
from render_tier.multimodal.item import ImageLayout

IMAGE = "<image>"
PIXELS = "pixel_values_flat"
FRAMES_OF: Mapping[str, str] = {
    "qwen2": "<|video_pad|>",
    "qwen3": "<|video_pad|>",
    "qwen3_moe": "<|video_pad|>",
    "gpt_oss": "<|reserved_200000|>",
}
"""By the text model's type, the token that embeddings of frames take the place of in vLLM; others have no
videos there."""
KEPT = 8
"""Numbers of frames whose tokens are kept."""


def internvl_chat(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> Family:
    of_tile = _tokens_of_tile(config)
    begin, context, end = (required_id(vocabulary, name) for name in (BEGIN, CONTEXT, END))
    place = vocabulary.token_id(IMAGE)

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        count = of_tile * layout.tiles
        return Replacement((begin, *(context,) * count, end), 1, count)

    return Family(
        mark=IMAGE,
        token=IMAGE,
        token_id=context if place is None else place,
        fields=tile_fields(PIXELS, context),
        replacement=replacement,
        frames=1,
        engine_normalizes=False,
        joined={},
        spelled=Spelled(tuple(encode(IMAGE)), CONTEXT, context) if place is None else None,
    )


def internvl_chat_video(
    config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode
) -> VideoForm | None:
    """None for a model that has no videos."""
    token = FRAMES_OF.get(str(text_config(dict(config)).get("model_type")))
    pad = None if token is None else vocabulary.token_id(token)
    if token is None or pad is None:
        return None
    of_tile = _tokens_of_tile(config)
    begin, context, end = (required_id(vocabulary, name) for name in (BEGIN, CONTEXT, END))
    place = vocabulary.token_id(VIDEO)
    lead = _said(1)
    lead_ids = tuple(encode(lead))

    @lru_cache(maxsize=KEPT)
    def of_frames(frames: int) -> Replacement:
        frame = (begin, *(pad,) * of_tile, end)
        ids = list(frame if place is None else (*lead_ids, *frame))
        starts = [len(ids) - 1 - of_tile]
        for number in range(2, frames + 1):
            ids += [*encode(_said(number)), *frame]
            starts.append(len(ids) - 1 - of_tile)
        return Replacement(tuple(ids), starts[0], of_tile, later=tuple(starts[1:]), of_video=True)

    def replacement(places: VideoPlaces) -> Replacement:
        return of_frames(places.groups)

    return VideoForm(
        mark=VIDEO,
        token=VIDEO,
        token_id=pad if place is None else place,
        modality="image",
        sampling="evenly",
        fields=tile_fields(PIXELS, context),
        replacement=replacement,
        spelled=Spelled(tuple(encode(VIDEO)), token, pad, lead, lead_ids) if place is None else None,
        items=lambda arrays: frames_as_images(arrays["pixel_values_flat_video"], PIXELS),
    )


def _said(number: int) -> str:
    """In front of a frame, counted from 1."""
    return f"Frame{number}: "


def _tokens_of_tile(config: Mapping[str, Any]) -> int:
    vision = config["vision_config"]
    patches = int(vision.get("image_size", 224)) // int(vision.get("patch_size", 14))
    return int(patches**2 * float(config.get("downsample_ratio", 0.5)) ** 2)
