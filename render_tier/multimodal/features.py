"""The `features` of a GenerateRequest: what the prompt's images are, where they stand, and their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from render_tier.multimodal.placeholders import Range
from render_tier.multimodal.prepared import PreparedImage

Payload = Literal["tensors", "none"]
MODALITY = "image"


class InconsistentFeatures(ValueError):
    """Images, ranges and prompt do not belong together: a fault of this program, found before an engine
    does."""


def features_of(
    images: Sequence[PreparedImage],
    hashes: Sequence[str],
    ranges: Sequence[Range],
    *,
    prompt_length: int,
    payload: Payload,
) -> dict[str, Any]:
    """Items are JSON already (`msgspec.Raw`). With ``payload`` "none" there are none of them.

    Raises InconsistentFeatures.
    """
    _check(images, hashes, ranges, prompt_length)
    features: dict[str, Any] = {
        "mm_hashes": {MODALITY: list(hashes)},
        "mm_placeholders": {MODALITY: [{"offset": where.offset, "length": where.length} for where in ranges]},
        "kwargs_data": None,
        "mm_metadata": None,
    }
    if payload == "tensors":
        features["kwargs_data"] = {MODALITY: [msgspec.Raw(image.item.kwargs) for image in images]}
        metadata = [image.item.metadata for image in images]
        if any(item is not None for item in metadata):
            features["mm_metadata"] = {
                MODALITY: [None if item is None else msgspec.Raw(item) for item in metadata]
            }
    return features


def _check(
    images: Sequence[PreparedImage], hashes: Sequence[str], ranges: Sequence[Range], prompt_length: int
) -> None:
    if not len(images) == len(hashes) == len(ranges):
        raise InconsistentFeatures(f"{len(images)} images, {len(hashes)} hashes, {len(ranges)} ranges")
    end = 0
    for image, where in zip(images, ranges, strict=True):
        if where.length != image.replacement.count or where.offset < end:
            raise InconsistentFeatures(f"{where} for an image of {image.replacement.count} tokens")
        end = where.offset + where.length
    if end > prompt_length:
        raise InconsistentFeatures(f"a range ends at {end} in a prompt of {prompt_length} tokens")
