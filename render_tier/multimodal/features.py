"""The `features` of a GenerateRequest: what the prompt's images and videos are, where they stand, and their
pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from render_tier.multimodal.placeholders import Range
from render_tier.multimodal.prepared import Modality, NamedItem

Payload = Literal["tensors", "none"]


class InconsistentFeatures(ValueError):
    """Items, ranges and prompt do not belong together: a fault of this program, found before an engine
    does."""


@dataclass(frozen=True)
class Features:
    items: dict[Modality, list[tuple[NamedItem, Range]]]
    """In the order of their places."""
    payload: Payload
    field = "features"
    """Of the request that has them."""

    def sent_ids(self) -> None:
        """Engines are sent the prompt's own."""

    def pieces(self) -> list[bytes]:
        """A member of a JSON object, in pieces: items are large, and are not copied."""
        kwargs: dict[Modality, Sequence[bytes | None]] = {}
        metadata: dict[Modality, Sequence[bytes | None]] = {}
        if self.payload == "tensors":
            for modality, placed in self.items.items():
                kwargs[modality] = [None if item.named_only else item.item.kwargs for item, _ in placed]
                kept = [item.item.metadata for item, _ in placed]
                if any(each is not None for each in kept):
                    metadata[modality] = kept
        return [
            b'"features":',
            msgspec.json.encode(self._places())[:-1],
            *(b',"kwargs_data":', *_strings(kwargs), b',"mm_metadata":', *_strings(metadata), b"}"),
        ]

    def _places(self) -> dict[str, Any]:
        return {
            "mm_hashes": {
                modality: [item.mm_hash for item, _ in placed] for modality, placed in self.items.items()
            },
            "mm_placeholders": {
                modality: [_place(where) for _, where in placed] for modality, placed in self.items.items()
            },
        }


def _place(where: Range) -> dict[str, Any]:
    place: dict[str, Any] = {"offset": where.offset, "length": where.length}
    return place if where.mask is None else {**place, "is_embed": where.mask}


def _strings(items: dict[Modality, Sequence[bytes | None]]) -> list[bytes]:
    """A JSON object of lists; null for an empty one."""
    if not items:
        return [b"null"]
    pieces = [b"{"]
    for modality, strings in items.items():
        pieces.append(b'"%b":[' % modality.encode())
        for string in strings:
            pieces += [b"null"] if string is None else [b'"', string, b'"']
            pieces.append(b",")
        pieces[-1] = b"]"
        pieces.append(b",")
    pieces[-1] = b"}"
    return pieces


def features_of(
    items: Sequence[NamedItem], ranges: Sequence[Range], *, prompt_length: int, payload: Payload
) -> Features:
    """With ``payload`` "none" there are no items. Raises InconsistentFeatures."""
    if len(items) != len(ranges):
        raise InconsistentFeatures(f"{len(items)} items, {len(ranges)} ranges")
    placed = sorted(zip(items, ranges, strict=True), key=lambda pair: pair[1].offset)
    by_modality: dict[Modality, list[tuple[NamedItem, Range]]] = {}
    end = 0
    for item, where in placed:
        if where.length != item.tokens or where.offset < end:
            raise InconsistentFeatures(f"{where} for an item of {item.tokens} tokens")
        end = where.offset + where.length
        by_modality.setdefault(item.modality, []).append((item, where))
    if end > prompt_length:
        raise InconsistentFeatures(f"a range ends at {end} in a prompt of {prompt_length} tokens")
    return Features(by_modality, payload)
