"""What an image is told apart by in engines: vLLM's `mm_hash`, the same here for the same image and model.

vLLM feeds blake3 with named values. Every name and value has its length in front (8 bytes, little-endian);
a value has its kind in front of that: 1 a sequence, 2 a mapping (both followed by how many they hold), 3
anything else. Numbers are eight bytes, truth is one. An image is the bytes that the client sent, beside how
they were converted where that was needed to get to RGB.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from blake3 import blake3

Value = bytes | str | bool | int | float | Sequence["Value"] | Mapping[str, "Value"]
SEQUENCE, MAPPING, LEAF = b"\x01", b"\x02", b"\x03"


def image_hash(
    data: bytes,
    *,
    model: str,
    conversion: Mapping[str, Value] | None,
    factors: Mapping[str, Value] | None = None,
) -> str:
    """``conversion``: None where the image was RGB already. ``factors``: what a request says of how the image
    becomes an item, by name."""
    image: Value = data if conversion is None else {"io_config": conversion, "data": data}
    return _hash(model, (LEAF, *_framed(b"image"), *_value(image)), factors or {})


def name_hash(name: str, *, model: str, factors: Mapping[str, Value], kind: str = "image") -> str:
    """Of an image, or a video, that the client has named: its ``uuid`` where a request says no more."""
    return _hash(model, _value(name), factors, kind) if factors else name


def owned_hash(mm_hash: str, scope: str | None, salt: str | None) -> str:
    """Of a client's name that is the client's alone (``scope``), or of its requests of one ``salt``: engines
    keep what they make of an image under that name for everybody."""
    if scope is None and salt is None:
        return mm_hash
    hasher = blake3()
    for chunk in (*_framed(b"owned"), *_value([scope or "", salt or "", mm_hash])):
        hasher.update(chunk)
    return hasher.hexdigest()


def video_hash(
    data: bytes,
    *,
    model: str,
    facts: Mapping[str, Value],
    frames: npt.NDArray[np.uint8] | None,
    factors: Mapping[str, Value] | None = None,
) -> str:
    """``facts``: of the file and the frames that were taken. ``frames`` (frames, height, width, 3): where
    they are fewer bytes than the file, which is then not looked at."""
    if frames is None:
        shown = (*_framed(b"video"), *_value(data))
    else:
        described = {"dtype": frames.dtype.str, "shape": frames.shape, "data": frames.tobytes()}
        shown = (*_framed(b"video"), LEAF, *_framed(b"ndarray"), *_value(described))
    pair = (SEQUENCE, _length(2), LEAF, *shown, *_value(facts))
    return _hash(model, pair, factors or {}, kind="video")


def part_hash(whole: str, number: int) -> str:
    """Of a part of an image or a video that is an item of its own; no engine makes one like it."""
    hasher = blake3()
    for chunk in (*_framed(b"part"), *_value(whole), *_value(number)):
        hasher.update(chunk)
    return hasher.hexdigest()


def _hash(model: str, item: Iterable[bytes], factors: Mapping[str, Value], kind: str = "image") -> str:
    hasher = blake3()
    named = {kind: item, "model_id": _value(model)}
    named.update({name: _value(value) for name, value in factors.items()})
    for name in sorted(named):
        for chunk in (*_framed(name.encode()), *named[name]):
            hasher.update(chunk)
    return hasher.hexdigest()


def _value(value: Value) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        yield MAPPING + _length(len(value))
        for name, held in value.items():
            yield from _framed(name.encode())
            yield from _value(held)
    elif isinstance(value, str | bytes):
        yield LEAF
        yield from _framed(value.encode() if isinstance(value, str) else value)
    elif isinstance(value, bool):
        yield LEAF
        yield from _framed(bytes([value]))
    elif isinstance(value, int):
        yield LEAF
        yield from _framed(_length(value))
    elif isinstance(value, float):
        yield LEAF
        yield from _framed(struct.pack("<d", value))
    else:
        yield SEQUENCE + _length(len(value))
        for held in value:
            yield from _value(held)


def _framed(data: bytes) -> tuple[bytes, bytes]:
    return _length(len(data)), data


def _length(value: int) -> bytes:
    return value.to_bytes(8, "little")
