"""What an image processor is, and what it makes of one image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class UnsupportedProcessor(ValueError):
    """A model whose image processor, or a setting of it, is not known here; the message names both."""


class ImageRefused(ValueError):
    """An image that the model's processor cannot take (Qwen's aspect ratio above 200, for one)."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The sizes of what a model is shown for an image: enough to count its placeholder tokens."""

    width: int
    """Pixels of one tile, or of the whole image after its resize where the family has no tiles."""
    height: int
    tiles: int = 1
    """Pictures of that size, an overview (thumbnail) among them."""
    tile_columns: int = 1
    """The grid of tiles, without the overview."""
    tile_rows: int = 1


Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    arrays: Arrays
    """One item's share of what the model's processor returns, by the processor's names (`pixel_values`,
    `image_grid_thw`, ...), with the shapes of vLLM's per-item slice: a field that vLLM batches has lost its
    first axis. Pixels are float32, or uint8 with `do_rescale` and `do_normalize` off: the cast to the model's
    type (bfloat16) belongs to whoever encodes them for an engine, as vLLM casts after the processor. Integers
    are int64."""
    width: int
    """Of the decoded image that was given."""
    height: int


class ImageProcessor(Protocol):
    @property
    def settings_digest(self) -> bytes:
        """Names the family and every setting that changes a result."""

    def process(self, image: npt.NDArray[np.uint8]) -> ProcessedImage:
        """image: (height, width, 3), RGB. Raises ImageRefused."""

    def layout(self, width: int, height: int) -> ImageLayout:
        """What `process` would make of an image of that size. Raises ImageRefused."""
