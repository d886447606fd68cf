"""The vision-language models whose images are taken here: how a prompt shows an image, and what of a
processed image an engine is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from render_tier.core.vocabulary import Vocabulary
from render_tier.model.files import ModelLoadError
from render_tier.multimodal.item import ImageLayout

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Replacement:
    """What stands in the prompt for one image."""

    ids: tuple[int, ...]
    first: int
    """Where among `ids` the tokens begin that the image's embeddings are put in place of."""
    count: int
    """How many those are; they follow each other."""


@dataclass(frozen=True)
class Field:
    """How vLLM lays an array of several images together: "flat" along the first axis, "batched" along a new
    one. What is kept on the CPU is also an item's metadata, which prefill needs without the pixels."""

    kind: Literal["flat", "batched"]
    keep_on_cpu: bool = False


@dataclass(frozen=True)
class Family:
    mark: str
    """Stands for an image in a message that reaches the template as one string."""
    token: str
    """What a template writes once for an image."""
    token_id: int
    fields: Mapping[str, Field]
    """The arrays that an engine is sent, in vLLM's order."""
    replacement: Callable[[ImageLayout], Replacement]
    frames: int
    """How often an item holds an image's pixels."""
    engine_normalizes: bool
    """Whether engines take pixels as bytes, to scale and normalize them on the device: by default they do,
    and would do it a second time to pixels that are normalized already."""
    joined: Mapping[tuple[int, int], int]
    """Pairs of tokens that a replacement may bring together, and the one token that the tokenizer has for
    both."""


QWEN_TYPES = frozenset(
    {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
)  # fmt: skip


CLASS_TOKENS: Mapping[str, int] = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Of Llava's vision models: how many embeddings there are beside those of patches."""


def family_of(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> Family | None:
    """The family of a model's config.json; None for one whose images are not taken here. ``encode``: text to
    IDs, without special tokens put around it. Raises ModelLoadError for a tokenizer without the tokens."""
    model_type = config.get("model_type")
    if not isinstance(config.get("vision_config"), dict):
        return None
    if model_type in QWEN_TYPES:
        return _qwen(config, vocabulary)
    if model_type == "gemma3":
        return _gemma3(config, vocabulary, encode)
    if model_type == "llava" and config["vision_config"].get("model_type") in CLASS_TOKENS:
        return _llava(config, vocabulary)
    return None


def _id(vocabulary: Vocabulary, token: str) -> int:
    found = vocabulary.token_id(token)
    if found is None:
        raise ModelLoadError(f"the tokenizer has no {token!r}, which the model's images need")
    return found


def _qwen(config: Mapping[str, Any], vocabulary: Vocabulary) -> Family:
    vision = config["vision_config"]
    merge = int(vision.get("spatial_merge_size", 2))
    default_patch = 16 if str(config["model_type"]).startswith("qwen3") else 14
    side = int(vision.get("patch_size", default_patch)) * merge
    token = "<|image_pad|>"
    pad = _id(vocabulary, token)

    def replacement(layout: ImageLayout) -> Replacement:
        count = (layout.width // side) * (layout.height // side)
        return Replacement((pad,) * count, 0, count)

    return Family(
        mark=f"<|vision_start|>{token}<|vision_end|>",
        token=token,
        token_id=pad,
        fields={"pixel_values": Field("flat"), "image_grid_thw": Field("batched", keep_on_cpu=True)},
        replacement=replacement,
        frames=int(vision.get("temporal_patch_size", 2)),
        engine_normalizes=True,
        joined={},
    )


def _gemma3(config: Mapping[str, Any], vocabulary: Vocabulary, encode: Encode) -> Family:
    count = int(config.get("mm_tokens_per_image", 256))
    begin, soft, end = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
    soft_id = _id(vocabulary, soft)
    ids = tuple(encode(f"\n\n{begin}{soft * count}{end}\n\n"))
    whole = Replacement(ids, ids.index(soft_id), count)
    lines = [_id(vocabulary, "\n" * length) for length in range(1, 5)]
    return Family(
        mark=begin,
        token=begin,
        token_id=_id(vocabulary, begin),
        fields={"pixel_values": Field("flat"), "num_patches": Field("batched", keep_on_cpu=True)},
        replacement=lambda layout: whole,
        frames=1,
        engine_normalizes=False,
        joined={
            (lines[0], lines[1]): lines[2],
            (lines[1], lines[0]): lines[2],
            (lines[1], lines[1]): lines[3],
        },
    )


def _llava(config: Mapping[str, Any], vocabulary: Vocabulary) -> Family:
    vision = config["vision_config"]
    patch = int(vision.get("patch_size", 14))
    extra = CLASS_TOKENS[vision["model_type"]]
    if config.get("vision_feature_select_strategy", "default") == "default":
        extra -= 1  # the first is left out, which is that of the class where there is one
    pad = config.get("image_token_index", config.get("image_token_id"))
    token = "<image>"
    if pad is None:
        pad = _id(vocabulary, token)
    pad_id = int(pad)

    def replacement(layout: ImageLayout) -> Replacement:
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
