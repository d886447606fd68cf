"""Reading a processor's settings: those of preprocessor_config.json, and overrides of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import UnsupportedProcessor
from render_tier.multimodal.processors.kernel_weights import Filter

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
Pixels = npt.NDArray[np.float32] | npt.NDArray[np.uint8]

Color = tuple[int, int, int]

BILINEAR, BICUBIC = 2, 3
"""Pillow's numbers of the filters, which `resample` holds."""

_FILTERS: dict[object, Filter] = {BILINEAR: "bilinear", BICUBIC: "bicubic"}


@dataclass(frozen=True, slots=True)
class Size:
    """The keys of a size that a file may have."""

    height: int | None = None
    width: int | None = None
    shortest_edge: int | None = None
    longest_edge: int | None = None


class Settings:
    """The settings of one processor; getters raise UnsupportedProcessor for what no processor here takes."""

    def __init__(self, family: str, defaults: Mapping[str, Any], *given: Mapping[str, Any]) -> None:
        """`defaults`, then each of `given`; a null there leaves what was before it."""
        self.family = family
        self._values = {"rescale_factor": 1 / 255, **defaults}
        for mapping in given:
            self._values.update({key: value for key, value in mapping.items() if value is not None})

    def wrong(self, key: str) -> UnsupportedProcessor:
        return UnsupportedProcessor(
            f"{self.family}: images cannot be processed with {key}={self._values.get(key)!r}"
        )

    def flag(self, key: str) -> bool:
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key)
        return value

    def require(self, key: str, wanted: bool) -> None:
        """Refuse what would change the result and is not done here."""
        if self.flag(key) is not wanted:
            raise self.wrong(key)

    def count(self, key: str) -> int:
        value = self._values.get(key)
        if not isinstance(value, int) or not _is_count(value):
            raise self.wrong(key)
        return value

    def optional_count(self, key: str) -> int | None:
        return None if self._values.get(key) is None else self.count(key)

    def number(self, key: str) -> float:
        value = self._values.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise self.wrong(key)
        return float(value)

    def size(self, key: str, *, square: bool) -> Size:
        """`square`: whether a lone number is a square's side; else it is the shortest edge."""
        value = self._values.get(key)
        if _is_count(value):
            return Size(height=value, width=value) if square else Size(shortest_edge=value)
        if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_count, value)):
            return Size(height=value[0], width=value[1])
        if not isinstance(value, Mapping):
            raise self.wrong(key)
        known = {name: value.get(name) for name in Size.__slots__}
        if not all(number is None or _is_count(number) for number in known.values()):
            raise self.wrong(key)
        return Size(**known)

    def resolutions(self, key: str) -> tuple[tuple[int, int], ...]:
        """A list of (height, width)."""
        value = self._values.get(key)
        if not isinstance(value, (list, tuple)) or not value:
            raise self.wrong(key)
        for pair in value:
            if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(_is_count, pair))):
                raise self.wrong(key)
        return tuple((height, width) for height, width in value)

    def filter(self) -> Filter:
        value = self._values.get("resample")
        if not isinstance(value, int) or value not in _FILTERS:
            raise self.wrong("resample")
        return _FILTERS[value]

    def mean_color(self) -> Color:
        """`image_mean` as a pixel."""
        self._channels("image_mean")
        red, green, blue = (int(value * 255) for value in self._values["image_mean"])
        if not 0 <= min(red, green, blue) <= max(red, green, blue) <= 255:
            raise self.wrong("image_mean")
        return red, green, blue

    def finish(self) -> Finish:
        return Finish(self._normalization())

    def _normalization(self) -> Normalization | None:
        """Fused as torchvision's processors fuse it: (pixel - mean / scale) / (std / scale), in float32. None
        where pixels are to stay bytes."""
        if not self.flag("do_normalize") and not self.flag("do_rescale"):
            return None
        self.require("do_normalize", True)
        unit = np.float32(1.0 / self.number("rescale_factor") if self.flag("do_rescale") else 1.0)
        return Normalization(self._channels("image_mean") * unit, self._channels("image_std") * unit)

    def _channels(self, key: str) -> npt.NDArray[np.float32]:
        """(3, 1)"""
        value = self._values.get(key)
        if not isinstance(value, (list, tuple)) or len(value) != 3:
            raise self.wrong(key)
        if not all(isinstance(item, (int, float)) and (item or key != "image_std") for item in value):
            raise self.wrong(key)
        return np.array(value, np.float32).reshape(3, 1)


def pixel_bounds(family: str, defaults: tuple[int, int], *given: Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most pixels of what a Qwen-VL processor resizes to.

    In one mapping the older names `min_pixels` and `max_pixels` go before `size`; a later mapping's `size`
    goes before all of an earlier one. Raises UnsupportedProcessor.
    """
    fewest, most = defaults
    for mapping in given:
        settings = Settings(family, {}, mapping)
        if mapping.get("size") is not None:
            size = settings.size("size", square=False)
            if size.shortest_edge is None or size.longest_edge is None:
                if not {"min_pixels", "max_pixels"} <= mapping.keys():
                    raise settings.wrong("size")
            else:
                fewest, most = size.shortest_edge, size.longest_edge
        fewest = settings.optional_count("min_pixels") or fewest
        most = settings.optional_count("max_pixels") or most
    return fewest, most


@dataclass(frozen=True, slots=True, eq=False)
class Normalization:
    mean: npt.NDArray[np.float32]
    """(3, 1), in units of a pixel."""
    std: npt.NDArray[np.float32]


class Finish:
    """The last step of every processor: whole numbers become normalized float32, or bytes."""

    def __init__(self, normalization: Normalization | None) -> None:
        """Without `normalization` the result is bytes."""
        self._normalization = normalization
        self.dtype: npt.DTypeLike = np.uint8 if normalization is None else np.float32

    def write(self, pixels: Pixels, out: Pixels) -> None:
        """`pixels` (rows, 3, columns), bytes or floats, may be overwritten; the result goes to `out`, of the
        same shape."""
        if self._normalization is None:
            np.copyto(out, pixels, casting="unsafe")
        else:
            numbers = pixels.astype(np.float32, copy=False)
            np.subtract(numbers, self._normalization.mean, out=numbers)
            np.divide(numbers, self._normalization.std, out=out)

    def finished(self, pixels: Pixels) -> Pixels:
        """`pixels` (rows, 3, columns), which may be overwritten, as the result has them."""
        if self._normalization is None and pixels.dtype == np.uint8:
            return pixels
        out = pixels if pixels.dtype == self.dtype else np.empty(pixels.shape, self.dtype)
        self.write(pixels, out)
        return out

    def black(self) -> Pixels:
        """(3, 1, 1): what a pixel of padding becomes, in an array of (3, rows, columns)."""
        black = np.zeros((1, 3, 1), np.float32)
        return self.finished(black).reshape(3, 1, 1)

    def summary(self) -> list[str]:
        if self._normalization is None:
            return []
        return [self._normalization.mean.tobytes().hex(), self._normalization.std.tobytes().hex()]


def digest(family: str, **values: object) -> bytes:
    """Of a family's name and the settings that its results depend on."""
    text = json.dumps([family, values], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
