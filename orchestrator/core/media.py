"""The media of a prompt: where they stand among its IDs, and what an engine's caches know them by.

The placeholders of all images are one ID, so IDs alone do not say what a prompt shows. An engine's prefix
cache tells images apart by their hashes, and so does everything here that files KV under a prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import shake_128
from typing import Annotated, Final

import msgspec

from orchestrator.core.grids import grid_fault
from orchestrator.core.long_strings import reference, referred, size_of
from render_tier.protocol.unreadable import UNREADABLE


class FeaturesError(ValueError):
    """Features that do not belong to their prompt; the message says why."""


@dataclass(frozen=True, slots=True)
class Item:
    hash: str
    """What engines keep it under."""
    offset: int
    length: int
    """Of its placeholders, in tokens."""
    data_bytes: int = 0
    """Of its JSON."""


class _Place(msgspec.Struct):
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(gt=0)]
    is_embed: list[bool] | None = None
    """Which of its tokens an embedding takes the place of; without it all."""

    @property
    def embeddings(self) -> int:
        return self.length if self.is_embed is None else sum(self.is_embed)


class Features(msgspec.Struct):
    """By modality, one entry per item."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[_Place]]
    kwargs_data: dict[str, list[msgspec.Raw]] | None = None
    mm_metadata: dict[str, list[msgspec.Raw]] | None = None


def read_media(
    features: Features | None, prompt_tokens: int, strings: Sequence[memoryview] = ()
) -> tuple[Item, ...]:
    """In the order in which they stand in the prompt. ``strings``: what the data refers to. Raises
    ``FeaturesError``."""
    if features is None:
        return ()
    hashes, places = features.mm_hashes, features.mm_placeholders
    told: list[Mapping[str, Sequence[object]]] = [places]
    told += [part for part in (features.kwargs_data, features.mm_metadata) if part is not None]
    items: list[Item] = []
    if any(part.keys() != hashes.keys() for part in told):
        raise FeaturesError("features must have the same modalities in all their parts")
    for modality, names in hashes.items():
        if any(len(part[modality]) != len(names) for part in told):
            raise FeaturesError(f"features must have the same number of {modality} items in all their parts")
        for place in places[modality]:
            if place.is_embed is not None and not (
                len(place.is_embed) == place.length and any(place.is_embed)
            ):
                raise FeaturesError(
                    "is_embed in mm_placeholders must say true or false of each token, not only false"
                )
        data, metadata = features.kwargs_data, features.mm_metadata
        for name, part in (("kwargs_data", data), ("mm_metadata", metadata)):
            if part is not None and any(bytes(memoryview(each)[:1]) not in b'"n' for each in part[modality]):
                raise FeaturesError(f"{name} of features must have a string or null for each item")
        if metadata is not None:
            packed = [_packed(each) for each in metadata[modality]]
            if fault := grid_fault(modality, packed, [place.embeddings for place in places[modality]]):
                raise FeaturesError(f"mm_placeholders and mm_metadata of features do not agree: {fault}")
        sizes = [0] * len(names) if data is None else [size_of(each, strings) for each in data[modality]]
        items += [
            Item(name, place.offset, place.length, size)
            for name, place, size in zip(names, places[modality], sizes, strict=True)
        ]
    items.sort(key=lambda item: item.offset)
    end = 0
    for item in items:
        if item.offset < end:
            raise FeaturesError("the mm_placeholders of features must not overlap")
        end = item.offset + item.length
    if end > prompt_tokens:
        raise FeaturesError(f"mm_placeholders end at {end}, the prompt has {prompt_tokens} tokens")
    return tuple(items)


def _packed(metadata: msgspec.Raw) -> bytes | None:
    """What is no base64 is an item's that tells nothing."""
    try:
        return msgspec.json.decode(metadata, type=bytes | None)
    except UNREADABLE:
        return None


def lacks_data(features: Features | None) -> bool:
    """Whether some item is named only: engines would have to have it already."""
    if features is None:
        return False
    data = features.kwargs_data
    if data is None:
        return any(features.mm_hashes.values())
    return any(bytes(memoryview(item)[:1]) != b'"' for items in data.values() for item in items)


def identified(token_ids: Sequence[int], media: Sequence[Item]) -> Sequence[int]:
    """``token_ids`` with numbers that only the items themselves give in place of their placeholders, none of
    which is an ID: equal where engines may take the one for the other."""
    if not media:
        return token_ids
    ids = list(token_ids)
    for item in media:
        digest = shake_128(item.hash.encode(errors="surrogatepass")).digest(_WIDTH * item.length)
        numbers = array("Q", digest)
        ids[item.offset : item.offset + item.length] = [number | _NO_ID for number in numbers]
    return ids


def renamed(features: msgspec.Raw, name: Callable[[str], str]) -> msgspec.Raw:
    """Features, as JSON, with other hashes."""
    fields = _fields_decoder.decode(features)
    hashes = _hashes_decoder.decode(fields["mm_hashes"])
    mine = {modality: [name(each) for each in names] for modality, names in hashes.items()}
    return msgspec.Raw(msgspec.json.encode({**fields, "mm_hashes": mine}))


def data_of(features: msgspec.Raw, strings: Sequence[memoryview]) -> dict[str, memoryview]:
    """By hash, the items' data that ``features``, as JSON, refers to in ``strings``."""
    read = _features_decoder.decode(features)
    return {
        name: found
        for modality, items in (read.kwargs_data or {}).items()
        for name, data in zip(read.mm_hashes[modality], items, strict=True)
        if (found := referred(data, strings)) is not None
    }


def with_data(
    features: msgspec.Raw, known: Mapping[str, memoryview], first: int
) -> tuple[msgspec.Raw, list[memoryview]]:
    """Features, as JSON, with references to the data in ``known`` of items that they only name; and those
    data, of which the first one's number is ``first``."""
    fields = _fields_decoder.decode(features)
    hashes = _hashes_decoder.decode(fields["mm_hashes"])
    by_modality = _data_decoder.decode(fields.get("kwargs_data", _NULL))
    found: list[memoryview] = []
    for modality, items in (by_modality or {}).items():
        for index, name in enumerate(hashes[modality]):
            if items[index] == _NULL and name in known:
                items[index] = reference(first + len(found))
                found.append(known[name])
    if found:
        fields["kwargs_data"] = msgspec.Raw(msgspec.json.encode(by_modality))
    return msgspec.Raw(msgspec.json.encode(fields)), found


def without_data(features: msgspec.Raw, names: Collection[str]) -> msgspec.Raw:
    """Features, as JSON, that only name the items with these hashes."""
    fields = _fields_decoder.decode(features)
    hashes = _hashes_decoder.decode(fields["mm_hashes"])
    for field in ("kwargs_data", "mm_metadata"):
        # An engine takes both or neither.
        by_modality = _data_decoder.decode(fields.get(field, _NULL))
        if by_modality is not None:
            left = {
                modality: [
                    _NULL if name in names else data
                    for name, data in zip(hashes[modality], items, strict=True)
                ]
                for modality, items in by_modality.items()
            }
            fields[field] = msgspec.Raw(msgspec.json.encode(left))
    return msgspec.Raw(msgspec.json.encode(fields))


_NULL: Final = msgspec.Raw(b"null")
_WIDTH: Final = 8
_NO_ID: Final = 1 << 63
_features_decoder = msgspec.json.Decoder(Features)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_hashes_decoder = msgspec.json.Decoder(dict[str, list[str]])
_data_decoder = msgspec.json.Decoder(dict[str, list[msgspec.Raw]] | None)
