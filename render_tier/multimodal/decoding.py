"""Bytes of an image file to RGB pixels, as vLLM's image loader gives them, within bounds.

Formats are those with a decoder of their own in Pillow. SVG is none of them, nor is anything that Pillow
hands to another program. EXIF orientation is applied; transparency is laid on a color, white by default; of
an animation the first frame is taken. A file's header decides on its size before anything of it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import AvifImagePlugin, Image, ImageFile, ImageOps

from render_tier.multimodal.jpeg_scans import has_more_scans

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
Color = tuple[int, int, int]
BACKGROUND: Color = (255, 255, 255)
ORIENTATION = 0x0112
TURNED, SIDEWAYS = range(2, 9), range(5, 9)
"""Values of EXIF's orientation that are not upright; those that swap width and height."""
LONGEST_SIDE = 1 << 16
"""Pixels. The weights by which a longer one is shrunk take gigabytes, however few pixels the other has."""
JPEGS = ("JPEG", "MPO")
MOST_SCANS = 100
"""Of a JPEG, of which encoders write some ten; libtiff's bound for those within a TIFF."""
PLAIN = (b"P1", b"P2", b"P3")
"""How a PPM begins whose numbers are written as text."""
MOST_COMMENTS = 1000
"""In such text, where each takes Pillow a copy of as much as a megabyte."""
SIZED_UPRIGHT = ("TIFF",)
"""Formats whose images have the size, when they are opened, that they have once they are turned."""
LATE_ORIENTATION = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
"""What a PNG says its orientation in, which may come behind its pixels."""
AvifImagePlugin.DEFAULT_MAX_THREADS = 1
"""An image has the thread that decodes it, and not one more for each core."""


class UnreadableImage(ValueError):
    """Bytes that are no image of a known format, or not the image that their header announces."""


class ImageTooLarge(ValueError):
    """An image with more pixels than are allowed, or more passes over them."""


def conversion(background: Color) -> dict[str, str | Color]:
    """How an image that is not RGB becomes so: part of its hash in vLLM."""
    return {"image_mode": "RGB", "rgba_background_color": background}


class OpenedImage:
    """An image of which the header has been read. Nothing that is decoded stays in it: requests have many of
    them."""

    def __init__(self, data: bytes, *, max_pixels: int) -> None:
        """Raises UnreadableImage and ImageTooLarge."""
        self._data = data
        with _faults_of_the_file():
            image = _opened(data)
        width, height = image.size
        if max(width, height) > LONGEST_SIDE:
            raise ImageTooLarge(
                f"the image has {width}x{height} pixels; at most {LONGEST_SIDE} a side are allowed"
            )
        if width * height > max_pixels:
            raise ImageTooLarge(
                f"the image has {width}x{height} pixels ({width * height}); at most {max_pixels} are allowed"
            )
        if image.format in JPEGS and has_more_scans(data, MOST_SCANS):
            raise ImageTooLarge(f"the image is more than {MOST_SCANS} scans of all its pixels")
        if data.startswith(PLAIN) and data.count(b"#") > MOST_COMMENTS:
            raise UnreadableImage(f"not a readable image: more than {MOST_COMMENTS} comments")
        sideways = image.format not in SIZED_UPRIGHT and _announced_orientation(image, data) in SIDEWAYS
        self.size = (height, width) if sideways else (width, height)
        """Width and height once it is turned as its EXIF orientation says."""

    def pixels(self, background: Color = BACKGROUND) -> tuple[npt.NDArray[np.uint8], bool]:
        """(height, width, 3), and whether it took a conversion to get there. ``background``: what
        transparency is laid on. Raises UnreadableImage."""
        with _faults_of_the_file():
            image: Image.Image = _opened(self._data)
            image.load()
            if _orientation(image) in TURNED:
                # vLLM goes on with the image as it is where turning it fails.
                with suppress(Exception):
                    image = ImageOps.exif_transpose(image)
            converted = image.mode != "RGB"
            if converted:
                image = _as_rgb(image, background)
            return np.asarray(image), converted


def _opened(data: bytes) -> ImageFile.ImageFile:
    return Image.open(BytesIO(data), formats=FORMATS)


def _announced_orientation(image: ImageFile.ImageFile, data: bytes) -> int:
    """Before it is decoded, but where the file says it behind the pixels."""
    if image.format != "PNG":
        return _orientation(image)
    behind = data.find(b"IDAT")
    if any(data.find(mark, behind) >= 0 for mark in LATE_ORIENTATION):
        # Decoded for this alone: there is no telling what else the library makes of such a file.
        with _opened(data) as whole, suppress(Exception):
            whole.load()
            return _orientation(whole)
    # Pillow's own method for PNG decodes the image to look behind its pixels.
    return _orientation(image, Image.Image.getexif)


def _orientation(
    image: Image.Image, exif_of: Callable[[Image.Image], Image.Exif] = lambda image: image.getexif()
) -> int:
    try:
        return int(exif_of(image).get(ORIENTATION, 1))
    except Exception:  # whatever a malformed header makes the library raise
        return 1


def _as_rgb(image: Image.Image, background: Color) -> Image.Image:
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image if image.mode == "RGBA" else image.convert("RGBA")
    ground = Image.new("RGB", layer.size, background)
    ground.paste(layer, mask=layer.getchannel("A"))
    return ground


@contextmanager
def _faults_of_the_file() -> Iterator[None]:
    """Whatever Pillow raises for a file: it may be anything, as there are many decoders."""
    try:
        yield
    except MemoryError:
        raise
    except Image.DecompressionBombError:
        raise ImageTooLarge("the image has more pixels than any may have") from None
    except Exception as error:
        said = error.args[0] if error.args else ""
        # Some say it in bytes, with those of the file.
        told = said.decode("ascii", "backslashreplace") if isinstance(said, bytes) else str(error)
        reason = told.partition(" <_io.")[0] or type(error).__name__
        raise UnreadableImage(f"not a readable image: {reason[:200]}") from None
