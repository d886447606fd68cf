"""Features that a client sends, beside what is checked of all (``media``).

Render writes an item's fields as vLLM does, so only a client can send what no engine can read; an engine
fails on that with a 500, and may end. What stands in the tensors is not looked at, but for grids and the
seconds between frames.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import pybase64

from orchestrator.core.grids import grid_fault, has_unreadable_grid, seconds_fault
from orchestrator.core.media import Features, FeaturesError

MODALITIES: Final = ("image", "video", "audio", "vision_chunk")
"""vLLM's."""


class _Field(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor, or numbers, and how it is laid together with those of other items, which engines look up by
    its name."""

    data: msgspec.Raw
    field: tuple[Literal["batched", "flat", "shared"], dict[str, msgspec.Raw]]


def check_client_features(features: Features) -> None:
    """``features`` are such as ``read_media`` takes. Raises ``FeaturesError``."""
    unknown = features.mm_hashes.keys() - set(MODALITIES)
    if unknown:
        raise FeaturesError(f"features are of {', '.join(MODALITIES)}, not {min(unknown)[:64]!r}")
    _check_hashes(features)
    for name, part in (("kwargs_data", features.kwargs_data), ("mm_metadata", features.mm_metadata)):
        for modality, items in (part or {}).items():
            packed = [_fields(item, f"{name}.{modality}[{index}]") for index, item in enumerate(items)]
            tokens = [place.embeddings for place in features.mm_placeholders[modality]]
            if fault := grid_fault(modality, packed, tokens):
                raise FeaturesError(f"mm_placeholders and {name} of features do not agree: {fault}")
            if modality == "video" and (fault := seconds_fault(packed, tokens)):
                raise FeaturesError(f"{name} of features has what no engine has positions for: {fault}")


def _check_hashes(features: Features) -> None:
    """An engine computes the first item of a hash, and puts that in the places of all."""
    told = [part for part in (features.kwargs_data, features.mm_metadata) if part is not None]
    shown: dict[str, tuple[object, ...]] = {}
    for modality, names in features.mm_hashes.items():
        for index, name in enumerate(names):
            place = features.mm_placeholders[modality][index]
            item = modality, place.length, place.is_embed, *(part[modality][index] for part in told)
            if shown.setdefault(name, item) != item:
                raise FeaturesError(f"mm_hashes of features has {name[:64]!r} for two items that differ")


def _fields(item: msgspec.Raw, where: str) -> bytes | None:
    """An item's fields as msgpack, which they are."""
    if item == _NULL:
        return None
    try:
        packed = _decoded(item)
        fields = _decoder.decode(packed)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise FeaturesError(f"{where} of features must be an item's fields: base64 of msgpack") from error
    if not fields:
        raise FeaturesError(f"{where} of features has no fields")
    if has_unreadable_grid(packed):
        raise FeaturesError(f"{where} of features has a grid that is no tensor of three int64")
    return packed


def _decoded(item: msgspec.Raw) -> bytes:
    """Raises ValueError for what is no base64."""
    try:
        return pybase64.b64decode(memoryview(item)[1:-1], validate=True)
    except ValueError:
        # Some write "/" in JSON as "\\/".
        return pybase64.b64decode(msgspec.json.decode(item, type=str), validate=True)


_NULL: Final = msgspec.Raw(b"null")
_decoder: Final = msgspec.msgpack.Decoder(dict[str, _Field])
