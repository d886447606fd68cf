"""The grids of images and videos, and how far the frames of videos are apart, against the places that those
have in their prompt.

Models of Qwen-VL's kind are told each one's grid of patches (frames, rows, columns), and compute positions
from it; the patches of a square are one token. An engine that is told of more tokens than there are
places, or of fewer, gives every token behind them another position, or ends. Qwen2.5-VL is told the seconds
between the frames of a video's grid too, and counts positions by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isqrt, prod
from struct import Struct
from typing import Final

import msgspec
from msgspec.msgpack import Ext

from render_tier.protocol.unreadable import UNREADABLE

RAW_TENSOR: Final = 3
"""Code of vLLM's msgpack extension for a tensor's bytes."""

POSITIONS_A_SECOND: Final = 4
"""What Qwen2.5-VL counts unless its config.json says otherwise; public models have 2."""
MOST_POSITIONS: Final = 4
"""Of a token: engines have so many times the positions of a context, and end at one beyond."""

_NONE: Final = msgspec.Raw()


class _Tensor(msgspec.Struct, array_like=True):
    type: str
    shape: list[int]
    data: Ext


class _Field(msgspec.Struct):
    data: _Tensor


class _Fields(msgspec.Struct):
    image_grid_thw: msgspec.Raw = _NONE
    video_grid_thw: msgspec.Raw = _NONE
    second_per_grid_ts: msgspec.Raw = _NONE

    def of(self, modality: str) -> msgspec.Raw | None:
        by_modality = {"image": self.image_grid_thw, "video": self.video_grid_thw}
        told = by_modality.get(modality, _NONE)
        return None if told == _NONE else told


def grid_fault(modality: str, items: Sequence[bytes | None], tokens: Sequence[int]) -> str | None:
    """What is wrong with the grids in the fields (msgpack) of images, or videos, whose places have so many
    tokens for them. Fields that tell of no grid are not looked at."""
    sides, article = set(), "an" if modality in ("image", "audio") else "a"
    for packed, length in zip(items, tokens, strict=True):
        fields = _fields(packed)
        own = fields.of(modality)
        if own is None and (
            other := next((each for each in _MODALITIES if fields.of(each) is not None), None)
        ):
            return f"{article} {modality} has the grid of {_MODALITIES[other]}"
        if own is None or (grid := _grid(own)) is None:
            continue
        frames, rows, columns = grid
        patches = prod(grid) if min(grid) > 0 else 0
        side = isqrt(patches // length)
        if not side or side * side * length != patches:
            return f"{article} {modality} of {patches} patches has a place of {length} tokens"
        if rows % side or columns % side:
            return f"{article} {modality} of {rows} by {columns} patches has no tokens of {side} by {side}"
        if modality == "image" and frames != 1:
            return f"an image has {frames} frames"
        sides.add(side)
    if len(sides) > 1:
        return (
            f"{modality}s have tokens of {' and '.join(str(side * side) for side in sorted(sides))} patches"
        )
    return None


def has_unreadable_grid(packed: bytes) -> bool:
    """Whether fields have a grid that ``grid_fault`` cannot compare, as it is no tensor of three int64."""
    fields = _fields(packed)
    return any(own is not None and _grid(own) is None for own in map(fields.of, _MODALITIES))


def seconds_fault(items: Sequence[bytes | None], tokens: Sequence[int]) -> str | None:
    """What is wrong with the seconds between the frames of videos' grids, as ``grid_fault``."""
    for packed, length in zip(items, tokens, strict=True):
        fields = _fields(packed)
        if fields.second_per_grid_ts == _NONE:
            continue
        seconds = _seconds(fields.second_per_grid_ts)
        if seconds is None or not isfinite(seconds) or seconds <= 0:
            return "a video has second_per_grid_ts that are no tensor of one float above 0"
        grid = None if fields.video_grid_thw == _NONE else _grid(fields.video_grid_thw)
        frames = 1 if grid is None else grid[0]
        if POSITIONS_A_SECOND * frames * seconds > MOST_POSITIONS * length:
            return f"a video of {frames} frames, {seconds:g} seconds apart, has a place of {length} tokens"
    return None


def _seconds(told: msgspec.Raw) -> float | None:
    try:
        field = _field_decoder.decode(told)
    except UNREADABLE:
        return None
    form, front = _FLOATS.get(field.data.type, (None, b""))
    raw = front + bytes(field.data.data.data)
    if form is None or field.data.data.code != RAW_TENSOR or len(raw) != form.size:
        return None
    if field.data.shape not in ([], [1]):
        return None
    return float(form.unpack(raw)[0])


def _fields(packed: bytes | None) -> _Fields:
    try:
        return _Fields() if packed is None else _decoder.decode(packed)
    except UNREADABLE:
        return _Fields()


def _grid(told: msgspec.Raw) -> tuple[int, int, int] | None:
    try:
        field = _field_decoder.decode(told)
    except UNREADABLE:
        return None
    if field.data.type != "int64" or field.data.data.code != RAW_TENSOR:
        return None
    raw = bytes(field.data.data.data)
    if len(raw) != _GRID.size or field.data.shape != [3]:
        return None
    frames, rows, columns = _GRID.unpack(raw)
    return frames, rows, columns


_MODALITIES: Final = {"image": "an image", "video": "a video"}
_GRID: Final = Struct("<3q")
_FLOATS: Final = {
    "bfloat16": (Struct("<f"), b"\0\0"),
    "float16": (Struct("<e"), b""),
    "float32": (Struct("<f"), b""),
    "float64": (Struct("<d"), b""),
}
"""How they are read, behind which bytes. vLLM writes the model's own type."""
_decoder: Final = msgspec.msgpack.Decoder(_Fields)
_field_decoder: Final = msgspec.msgpack.Decoder(_Field)
