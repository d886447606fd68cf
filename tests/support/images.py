"""Pictures for tests: the same bytes every time, of every kind that a client may send."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

ORIENTATION = 0x0112
LOCAL = "//".join(("file:", ""))
"""Before a path, the URL of a file; put together, as no file of this repository holds such URLs."""


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Gradients with some noise on them, so that a resize has something to get wrong."""
    noise = np.random.default_rng(seed).integers(0, 64, (height, width, 4))
    x, y = np.meshgrid(np.linspace(0, 191, width), np.linspace(0, 191, height))
    channels = np.stack([x, y, (x + y) / 2, 191 - x], axis=-1) + noise
    return Image.fromarray(channels.astype(np.uint8), "RGBA").convert(mode)


def file(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    target = BytesIO()
    image.save(target, form, **options)
    return target.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def turned(orientation: int) -> bytes:
    """A JPEG that is to be shown turned."""
    image = picture(40, 20)
    exif = image.getexif()
    exif[ORIENTATION] = orientation
    return file(image, "JPEG", exif=exif)


def palette(transparency: int | None = None) -> bytes:
    image = picture(40, 20).quantize(16)
    return file(image) if transparency is None else file(image, transparency=transparency)


def animation() -> bytes:
    frames = [picture(40, 20, seed=seed) for seed in range(3)]
    return file(frames[0], "GIF", save_all=True, append_images=frames[1:])


def deep(form: str = "PNG") -> bytes:
    """16 bits a pixel."""
    values = np.arange(40 * 20, dtype=np.uint16).reshape(20, 40) * 80
    return file(Image.fromarray(values), form)


def every_kind() -> dict[str, bytes]:
    """By name."""
    return {
        "rgb.png": file(picture(64, 48)),
        "odd.png": file(picture(123, 77, seed=1)),
        "rgb.jpeg": file(picture(200, 150, seed=2), "JPEG"),
        "cmyk.jpeg": file(picture(60, 40, "CMYK"), "JPEG"),
        "grey.jpeg": file(picture(60, 40, "L"), "JPEG"),
        "rgba.png": file(picture(60, 40, "RGBA")),
        "grey-alpha.png": file(picture(60, 40, "LA")),
        "palette.png": palette(),
        "palette-transparent.png": palette(transparency=3),
        "bilevel.png": file(picture(60, 40, "1")),
        "deep.png": deep(),
        "deep.tiff": deep("TIFF"),
        "float.tiff": file(picture(60, 40, "F"), "TIFF"),
        "animation.gif": animation(),
        "lossless.webp": file(picture(60, 40, "RGBA"), "WEBP", lossless=True),
        "rgb.bmp": file(picture(60, 40), "BMP"),
        **{f"turned-{value}.jpeg": turned(value) for value in range(2, 9)},
    }
