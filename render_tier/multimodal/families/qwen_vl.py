"""Qwen-VL: an image is as many tokens as it has patches after merging, and so is a video or a part of one.

Qwen2-VL and Qwen2.5-VL have one run of tokens for a video. Qwen3-VL has one for each two frames, with the
time before it: vLLM has one item for the video, whose place is all of that, and a mask that does not travel
with a request. Here each run is an item of its own, and an image to engines: its embeddings, their positions
and so the output are those of vLLM's one item, as frames do not look at each other in the vision part, and
vLLM places them by the runs too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from render_tier.core.vocabulary import Vocabulary
from render_tier.multimodal.families.family import Encode, Family, Field, Replacement, required_id
from render_tier.multimodal.families.video import VideoForm, VideoPlaces
from render_tier.multimodal.item import Arrays, ImageLayout

IMAGE_FIELDS = {"pixel_values": Field("flat"), "image_grid_thw": Field("batched", keep_on_cpu=True)}
VIDEO_FIELDS = {"pixel_values_videos": Field("flat"), "video_grid_thw": Field("batched", keep_on_cpu=True)}
TIMED_FIELDS = {"second_per_grid_ts": Field("batched", keep_on_cpu=True), **VIDEO_FIELDS}


def qwen_vl(config: Mapping[str, Any], vocabulary: Vocabulary) -> Family:
    vision = config["vision_config"]
    side = _side(config)
    token = "<|image_pad|>"
    pad = required_id(vocabulary, token)

    def replacement(layout: ImageLayout, width: int, height: int) -> Replacement:
        count = (layout.width // side) * (layout.height // side)
        return Replacement((pad,) * count, 0, count)

    return Family(
        mark=f"<|vision_start|>{token}<|vision_end|>",
        token=token,
        token_id=pad,
        fields=IMAGE_FIELDS,
        replacement=replacement,
        frames=int(vision.get("temporal_patch_size", 2)),
        engine_normalizes=True,
        joined={},
    )


def qwen_video(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> VideoForm:
    """Raises ModelLoadError for a tokenizer without the tokens."""
    side = _side(config)
    token = "<|video_pad|>"
    pad, begin, end = (
        required_id(vocabulary, name) for name in (token, "<|vision_start|>", "<|vision_end|>")
    )
    timed = str(config["model_type"]).startswith("qwen3")

    def in_one_run(places: VideoPlaces) -> Replacement:
        count = places.groups * (places.width // side) * (places.height // side)
        return Replacement((pad,) * count, 0, count, of_video=True)

    def with_times(places: VideoPlaces) -> Replacement:
        count = (places.width // side) * (places.height // side)
        ids: list[int] = []
        starts = []
        for time in places.times:
            ids += [*encode(f"<{time:.1f} seconds>"), begin]
            starts.append(len(ids))
            ids += [*(pad,) * count, end]
        return Replacement(tuple(ids), starts[0], count, later=tuple(starts[1:]), of_video=True)

    by_seconds = config["model_type"] == "qwen2_5_vl"
    of_video = TIMED_FIELDS if by_seconds else VIDEO_FIELDS
    return VideoForm(
        mark=f"<|vision_start|>{token}<|vision_end|>",
        token=token,
        token_id=pad,
        modality="image" if timed else "video",
        sampling="to the end" if timed else "from the start",
        fields=IMAGE_FIELDS if timed else of_video,
        replacement=with_times if timed else in_one_run,
        items=_groups if timed else lambda arrays: (arrays,),
        positions_a_second=float(config["vision_config"].get("tokens_per_second", 4)) if by_seconds else 0.0,
    )


def _groups(arrays: Arrays) -> list[Arrays]:
    groups, *grid = arrays["video_grid_thw"]
    patches = np.split(arrays["pixel_values_videos"], groups)
    one = np.array([1, *grid], np.int64)
    return [{"pixel_values": group, "image_grid_thw": one} for group in patches]


def _side(config: Mapping[str, Any]) -> int:
    """Of the square of pixels that becomes a token."""
    vision = config["vision_config"]
    default_patch = 16 if str(config["model_type"]).startswith("qwen3") else 14
    return int(vision.get("patch_size", default_patch)) * int(vision.get("spatial_merge_size", 2))
