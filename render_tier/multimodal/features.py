"""The `features` of a GenerateRequest: what the prompt's images are, where they stand, and their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from render_tier.multimodal.placeholders import Range
from render_tier.multimodal.prepared import PreparedImage

Payload = Literal["tensors", "none"]
MODALITY = "image"


class InconsistentFeatures(ValueError):
    """Images, ranges and prompt do not belong together: a fault of this program, found before an engine
    does."""


@dataclass(frozen=True)
class Features:
    hashes: Sequence[str]
    ranges: Sequence[Range]
    kwargs: Sequence[bytes] | None
    """Of each image, in base64; None for the payload "none"."""
    metadata: Sequence[bytes | None] | None
    """As `kwargs`; None where the family has none."""

    def pieces(self) -> list[bytes]:
        """The JSON object, in pieces: items are large, and are not copied."""
        return [
            msgspec.json.encode(self._places())[:-1],
            *(b',"kwargs_data":', *_strings(self.kwargs), b',"mm_metadata":', *_strings(self.metadata), b"}"),
        ]

    def to_dict(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(b"".join(self.pieces()))
        return decoded

    def _places(self) -> dict[str, Any]:
        return {
            "mm_hashes": {MODALITY: list(self.hashes)},
            "mm_placeholders": {MODALITY: [_place(where) for where in self.ranges]},
        }


def _place(where: Range) -> dict[str, Any]:
    place: dict[str, Any] = {"offset": where.offset, "length": where.length}
    return place if where.mask is None else {**place, "is_embed": where.mask}


def _strings(items: Sequence[bytes | None] | None) -> list[bytes]:
    if items is None:
        return [b"null"]
    pieces = [b'{"%b":[' % MODALITY.encode()]
    for item in items:
        pieces += [b"null"] if item is None else [b'"', item, b'"']
        pieces.append(b",")
    pieces[-1] = b"]}"
    return pieces


def features_of(
    images: Sequence[PreparedImage],
    hashes: Sequence[str],
    ranges: Sequence[Range],
    *,
    prompt_length: int,
    payload: Payload,
) -> Features:
    """With ``payload`` "none" there are no items. Raises InconsistentFeatures."""
    _check(images, hashes, ranges, prompt_length)
    if payload == "none":
        return Features(hashes, ranges, None, None)
    metadata = [image.item.metadata for image in images]
    has_some = any(item is not None for item in metadata)
    return Features(hashes, ranges, [image.item.kwargs for image in images], metadata if has_some else None)


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
