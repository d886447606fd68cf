"""One image as an engine takes it: vLLM's msgpack form of a processed item, in base64.

An item maps a field's name to its tensor, (type, shape, raw bytes as extension 3), and to the way in which
tensors of several items are laid together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from pybase64 import b64encode

from render_tier.multimodal.families import Family, Field, VideoForm

FloatType = Literal["bfloat16", "float16", "float32"]
FLOAT_BYTES: dict[FloatType, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
RAW_TENSOR = 3
"""Code of the msgpack extension type."""
CAST_AT_ONCE = 1 << 18
"""Values that are rounded in one go: few enough to stay in a core's cache."""


@dataclass(frozen=True)
class EncodedItem:
    """In base64."""

    kwargs: bytes
    """Of a picture, the file."""
    metadata: bytes | None
    """Only the fields that are kept on the CPU, if the family has any."""

    @property
    def size(self) -> int:
        return len(self.kwargs) + len(self.metadata or b"")


def encoded_bytes(values: int, float_type: FloatType, *, as_bytes: bool) -> int:
    """Size of an item with so many pixel values, but for a few bytes. ``as_bytes``: each is one byte."""
    return values * (1 if as_bytes else FLOAT_BYTES[float_type]) * 4 // 3


def encode_item(
    arrays: Mapping[str, npt.NDArray[Any]], family: Family | VideoForm, float_type: FloatType
) -> EncodedItem:
    """Raises KeyError for an item that lacks a field of its family."""
    fields = {}
    for name, field in family.fields.items():
        array = arrays[name] if field.value is None else np.array(field.value, np.int64)
        fields[name] = {"data": _tensor(array, float_type), "field": _field(field, array)}
    metadata = {name: fields[name] for name, field in family.fields.items() if field.keep_on_cpu}
    return EncodedItem(_packed(fields), _packed(metadata) if metadata else None)


def encode_picture(pixels: npt.NDArray[np.uint8]) -> EncodedItem:
    """(3, height, width), RGB, as a file of the simplest kind (PPM) for an engine's own processor."""
    _, height, width = pixels.shape
    file = b"P6 %d %d 255\n%b" % (width, height, pixels.transpose(1, 2, 0).tobytes())
    return EncodedItem(b64encode(file), None)


def _packed(fields: Mapping[str, Any]) -> bytes:
    packed: bytes = b64encode(msgspec.msgpack.encode(fields))
    return packed


def _field(field: Field, array: npt.NDArray[Any]) -> tuple[str, dict[str, Any]]:
    common = {"keep_on_cpu": field.keep_on_cpu}
    if field.kind == "batched":
        return "batched", common
    if field.kind == "shared":
        return "shared", {**common, "batch_size": 1}
    # Where this item is among the items of its own call to the processor.
    return "flat", {**common, "slices": (((0, len(array), None),),), "dim": 0}


def _tensor(
    array: npt.NDArray[Any], float_type: FloatType
) -> tuple[str, tuple[int, ...], msgspec.msgpack.Ext]:
    name = array.dtype.name
    contiguous = np.ascontiguousarray(array)
    if np.issubdtype(array.dtype, np.floating):
        name = float_type
        if float_type == "bfloat16":
            contiguous = bfloat16_bits(contiguous.astype(np.float32, copy=False))
        else:
            contiguous = contiguous.astype(float_type, copy=False)
    # Engines read little-endian, which is a copy where this machine is not.
    contiguous = contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False)
    raw = contiguous.reshape(-1).view(np.uint8).data
    return name, array.shape, msgspec.msgpack.Ext(RAW_TENSOR, raw)


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounded to the nearest, ties to even, as torch casts; not for NaN, which no pixel is."""
    bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    rounded = np.empty(bits.shape, np.uint16)
    for start in range(0, len(bits), CAST_AT_ONCE):
        piece = bits[start : start + CAST_AT_ONCE]
        up = (piece >> 16) & 1
        up += 0x7FFF
        up += piece
        up >>= 16
        rounded[start : start + CAST_AT_ONCE] = up
    return rounded.reshape(values.shape)
