"""InternVL (transformers' format): an image is as many tokens as its tiles have, between two markers; a video
is a line for each of its frames, with the tokens of one tile.

For vLLM a video is one item, whose place is all of its lines, and a mask that does not travel with a request.
Here each frame is an item of its own, and an image to engines: the vision part looks at each tile by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Encode, Family, Field, Replacement, required_id
from render_tier.multimodal.families.video import VideoForm, VideoPlaces
from render_tier.multimodal.item import Arrays, ImageLayout

BEGIN, CONTEXT, END, VIDEO = "<img>", "<IMG_CONTEXT>", "</img>", "<video>"
PIXELS = "pixel_values"
KEPT = 4
"""Numbers of frames whose tokens are kept."""


def internvl(config: Mapping[str, Any], vocabulary: Vocabulary) -> Family:
    tokens_of_tile = _tokens_of_tile(config)
    begin, context, end = (required_id(vocabulary, name) for name in (BEGIN, CONTEXT, END))

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        count = tokens_of_tile(layout.width, layout.height) * layout.tiles
        return Replacement((begin, *(context,) * count, end), 1, count)

    return Family(
        mark=CONTEXT,
        token=CONTEXT,
        token_id=context,
        fields=tile_fields(PIXELS, context),
        replacement=replacement,
        frames=1,
        engine_normalizes=False,
        joined={},
    )


def internvl_video(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> VideoForm:
    """Raises ModelLoadError for a tokenizer without the tokens."""
    tokens_of_tile = _tokens_of_tile(config)
    video = required_id(vocabulary, VIDEO)

    @lru_cache(maxsize=KEPT)
    def of_frames(frames: int, count: int) -> Replacement:
        lines = "\n".join(f"Frame{number}: {BEGIN}{VIDEO}{END}" for number in range(1, frames + 1))
        ids: list[int] = []
        starts = []
        for token in encode(lines):
            if token == video:
                starts.append(len(ids))
                ids += [video] * count
            else:
                ids.append(token)
        return Replacement(tuple(ids), starts[0], count, later=tuple(starts[1:]), of_video=True)

    def replacement(places: VideoPlaces) -> Replacement:
        return of_frames(places.groups, tokens_of_tile(places.width, places.height))

    return VideoForm(
        mark=VIDEO,
        token=VIDEO,
        token_id=video,
        modality="image",
        sampling="evenly",
        fields=tile_fields(PIXELS, required_id(vocabulary, CONTEXT)),
        replacement=replacement,
        items=lambda arrays: frames_as_images(arrays["pixel_values_videos"], PIXELS),
    )


def frames_as_images(frames: npt.NDArray[Any], pixels: str) -> list[Arrays]:
    """``frames``: one tile each. ``pixels``: what those of an image are called."""
    one = np.array(1, np.int64)
    return [{pixels: frame[None], "image_num_patches": one} for frame in frames]


def tile_fields(pixels: str, context: int) -> Mapping[str, Field]:
    """What an engine is sent of an image's tiles. ``pixels``: what those are called."""
    return {
        pixels: Field("flat"),
        "image_num_patches": Field("batched", keep_on_cpu=True),
        "image_token_id": Field("shared", keep_on_cpu=True, value=context),
    }


def _tokens_of_tile(config: Mapping[str, Any]) -> Callable[[int, int], int]:
    """By its width and height."""
    patch = _side(config["vision_config"].get("patch_size", 14))
    ratio = float(config.get("downsample_ratio", 0.5))
    return lambda width, height: int((width // patch) * (height // patch) * ratio**2)


def _side(size: Any) -> int:
    """Of a square that is given by one number or as [height, width]."""
    return int(size[0] if isinstance(size, list) else size)
