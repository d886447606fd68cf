"""The antialiased resize of torch's uint8 kernel on the CPU, bit for bit.

The kernel (ATen's, and Pillow's before it) resizes along the width, then along the height. An output pixel of
a pass is a sum of uint8 inputs times int16 weights, rounded and clipped to uint8. Where llvmlite is installed
and the CPU has AVX2 these sums are computed by machine code, elsewhere as matrix products, to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.processors.compiled_resampling import compiled_bands
from render_tier.multimodal.processors.kernel_weights import Filter, Window
from render_tier.multimodal.processors.multiplied_resampling import multiplied_bands
from render_tier.multimodal.processors.vector_passes import passes

Band = npt.NDArray[np.uint8] | npt.NDArray[np.float32]


def resized_bands(
    image: npt.NDArray[np.uint8],
    height: int,
    width: int,
    kind: Filter,
    *,
    window: Window | None = None,
    band: int = 32,
) -> Iterator[Band]:
    """`image` (height, width, 3) resized to (height, width), as bands of `band` rows from the top down.

    A band is (rows, 3, columns) of whole numbers from 0 to 255: its consumer's to overwrite, and only until
    the next one is asked for. With `window` the bands are those of that part of the resized image.
    """
    part = window or Window(0, 0, width, height)
    compiled = passes()
    if compiled is None:
        return multiplied_bands(image, height, width, kind, part, band)
    return compiled_bands(compiled, image, height, width, kind, part, band)
