"""Items of images as they travel: base64 of msgpack, as small as such can be."""

from __future__ import annotations

from base64 import b64encode
from struct import pack
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from orchestrator.core.grids import RAW_TENSOR


def tensor(kind: str, shape: list[int], data: bytes) -> dict[str, Any]:
    """A field."""
    return {
        "data": [kind, shape, Ext(RAW_TENSOR, data)],
        "field": ["batched", {"keep_on_cpu": True}],
    }


def grid(*patches: int) -> dict[str, Any]:
    """A field: of frames, rows and columns."""
    return tensor("int64", [3], pack("<3q", *patches))


def item(**fields: Any) -> str:
    return b64encode(msgspec.msgpack.encode(fields)).decode()


def of_pixels(values: str) -> str:
    """An item whose pixels are ``values``."""
    return item(pixel_values=tensor("uint8", [len(values)], values.encode()))
