"""The grids of images and videos against the places that those have in their prompt.

Models of Qwen-VL's kind are told each one's grid of patches (frames, rows, columns), and compute positions
from it; as many patches as a square has are one token. An engine that is told of more tokens than there are
places, or of fewer, gives every token behind them another position, or ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod
from struct import Struct
from typing import Final

import msgspec
from msgspec.msgpack import Ext

RAW_TENSOR: Final = 3
"""Code of vLLM's msgpack extension for a tensor's bytes."""


class _Tensor(msgspec.Struct, array_like=True):
    type: str
    shape: list[int]
    data: Ext


class _Field(msgspec.Struct):
    data: _Tensor


class _Metadata(msgspec.Struct):
    image_grid_thw: _Field | None = None
    video_grid_thw: _Field | None = None


def grid_fault(modality: str, metadata: Sequence[msgspec.Raw], lengths: Sequence[int]) -> str | None:
    """What is wrong with the grids in the ``mm_metadata`` of images, or videos, whose places are so many
    tokens long. Metadata that tells of no grid is not looked at."""
    sides, article = set(), "an" if modality == "image" else "a"
    for each, length in zip(metadata, lengths, strict=True):
        grid = _grid(each)
        if grid is None:
            continue
        patches = prod(grid) if min(grid) > 0 else 0
        side = isqrt(patches // length)
        if not side or side * side * length != patches:
            return f"{article} {modality} of {patches} patches has a place of {length} tokens"
        sides.add(side)
    if len(sides) > 1:
        return (
            f"{modality}s have tokens of {' and '.join(str(side * side) for side in sorted(sides))} patches"
        )
    return None


def _grid(metadata: msgspec.Raw) -> tuple[int, ...] | None:
    try:
        packed = msgspec.json.decode(metadata, type=bytes | None)
        told = _Metadata() if packed is None else _decoder.decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    field = told.image_grid_thw or told.video_grid_thw
    if field is None or field.data.type != "int64" or field.data.data.code != RAW_TENSOR:
        return None
    raw = bytes(field.data.data.data)
    return _GRID.unpack(raw) if len(raw) == _GRID.size else None


_GRID: Final = Struct("<3q")
_decoder: Final = msgspec.msgpack.Decoder(_Metadata)
