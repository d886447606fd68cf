"""What the Qwen-VL models' processors of images and of videos share: a size near the picture's own, and the
list of patches."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.item import ImageRefused
from render_tier.multimodal.processors.kernel_weights import Filter
from render_tier.multimodal.processors.resampling import resized_bands
from render_tier.multimodal.processors.settings import Finish, Pixels

MOST_ELONGATED = 200
"""Of a picture's sides, how many times longer the one may be than the other."""


def check_shape(width: int, height: int, *, sent: tuple[int, int] | None = None) -> None:
    """``sent``: the width and height that the client knows, where they are others. Raises ImageRefused."""
    if max(height, width) / min(height, width) > MOST_ELONGATED:
        across, down = sent or (width, height)
        raise ImageRefused(
            f"a picture of {across}x{down} pixels is more than {MOST_ELONGATED} times longer than wide"
        )


def near_size(width: int, height: int, unit: int, *, fewest: int, most: int) -> tuple[int, int]:
    """(height, width) in whole units near the picture's own, of so many pixels. Raises ImageRefused."""
    check_shape(width, height)
    rows, columns = round(height / unit) * unit, round(width / unit) * unit
    if rows * columns > most:
        shrink = math.sqrt((height * width) / most)
        rows = max(unit, math.floor(height / shrink / unit) * unit)
        columns = max(unit, math.floor(width / shrink / unit) * unit)
    elif rows * columns < fewest:
        grow = math.sqrt(fewest / (height * width))
        rows = math.ceil(height * grow / unit) * unit
        columns = math.ceil(width * grow / unit) * unit
    if not rows or not columns:
        raise ImageRefused(f"an image of {width}x{height} pixels is too small for one patch")
    return rows, columns


def write_frames(image: npt.NDArray[np.uint8], kind: Filter, finish: Finish, patches: Pixels) -> None:
    """Resize ``image`` (height, width, 3) to the patches' size and write it as each of their frames.

    ``patches``: (rows, columns, merge, merge, 3, frames, patch, patch), rows and columns in merged patches.
    """
    rows, across, merge, _, _, _, patch, _ = patches.shape
    # A line of a patch is copied as one item, which takes numpy half as long as the line's numbers.
    line = np.dtype((np.void, patch * patches.itemsize))
    unit = merge * patch
    bands = resized_bands(image, rows * unit, across * unit, kind, band=unit)
    for band, row in zip(bands, patches.view(line)[..., 0], strict=True):
        # (merge, patch, channel, across, merge) -> (across, merge, merge, channel, patch)
        lines = finish.finished(band).reshape(merge, patch, 3, across, merge, patch).view(line)
        row[:, :, :, :, 0] = lines[..., 0].transpose(3, 0, 4, 2, 1)
        row[:, :, :, :, 1:] = row[:, :, :, :, :1]
