"""Files to pixels: every kind of image, and files that lie."""

from __future__ import annotations

import re
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, _avif

from render_tier.multimodal.decoding import ORIENTATION, ImageTooLarge, OpenedImage, UnreadableImage
from tests.support import images

PLENTY = 1 << 20


def opened(data: bytes, max_pixels: int = PLENTY) -> OpenedImage:
    return OpenedImage(data, max_pixels=max_pixels)


@pytest.mark.parametrize("name", images.every_kind())
def test_every_kind_is_rgb_of_the_announced_size(name: str) -> None:
    image = opened(images.every_kind()[name])
    width, height = image.size
    pixels, converted = image.pixels()
    assert pixels.shape == (height, width, 3)
    assert pixels.dtype == np.uint8
    assert converted == (name.split(".")[0] not in {"rgb", "odd"} and not name.startswith("turned"))


def test_orientation_is_applied() -> None:
    upright = np.asarray(images.picture(40, 20).convert("RGB"))
    turned, _ = opened(images.turned(3)).pixels()
    assert np.abs(turned[::-1, ::-1].astype(int) - upright).mean() < 20
    assert opened(images.turned(6)).size == (20, 40)


def test_transparency_is_laid_on_white() -> None:
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    pixels, _ = opened(images.file(clear)).pixels()
    assert (pixels == 255).all()


def test_first_frame_of_an_animation() -> None:
    pixels, _ = opened(images.animation()).pixels()
    first = np.asarray(images.picture(40, 20, seed=0))
    assert np.abs(pixels.astype(int) - first).mean() < 30


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_cut_off_file(form: str) -> None:
    data = images.file(images.picture(64, 48), form)
    with pytest.raises(UnreadableImage, match="not a readable image"):
        opened(data[: len(data) // 2]).pixels()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
        b"\x00" * 1000,
    ],
)
def test_no_image(data: bytes) -> None:
    with pytest.raises(UnreadableImage):
        opened(data).pixels()


def test_what_is_said_in_bytes_is_told_as_text() -> None:
    told = re.escape("not a readable image: Token too long in file header: 4444444\\xff444")
    with pytest.raises(UnreadableImage, match=f"^{told}$"):
        opened(b"P6\n4444444\xff4444444444444").pixels()


def test_bomb_is_refused_by_its_header() -> None:
    with pytest.raises(ImageTooLarge, match="more pixels than any may have"):
        opened(png_of(50_000, 50_000))


@pytest.mark.parametrize("turn", [False, True])
def test_a_side_has_its_bound(turn: bool) -> None:
    """Of a picture a pixel high and millions wide the weights of its resize took gigabytes."""

    def strip(length: int) -> bytes:
        return images.file(Image.new("1", (1, length) if turn else (length, 1)))

    assert set(opened(strip(65536)).size) == {1, 65536}
    with pytest.raises(ImageTooLarge, match="at most 65536 a side"):
        opened(strip(65537))


def test_frame_larger_than_its_canvas() -> None:
    """A GIF is as large as its first frame, whatever its head says."""
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\x00\x00\x00\xff\xff\xff"
    for side, message in ((3000, "at most 1048576 are allowed"), (60_000, "more pixels than any may have")):
        frame = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\x00;"
        with pytest.raises(ImageTooLarge, match=message):
            opened(head + frame)


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
@pytest.mark.parametrize("place", [33, -12], ids=["before", "after"])
def test_texts_that_unfold_in_a_file_are_bounded(kind: bytes, place: int) -> None:
    data = images.file(images.picture(8, 8))
    head = {b"zTXt": b"k\x00\x00", b"iTXt": b"k\x00\x01\x00\x00\x00", b"iCCP": b"k\x00\x00"}[kind]
    bomb = chunk(kind, head + zlib.compress(bytes(20_000_000)))
    with pytest.raises(UnreadableImage, match="Decompressed data too large"):
        opened(data[:place] + bomb + data[place:]).pixels()


def test_exif_that_is_none_leaves_an_image_upright() -> None:
    data = images.file(images.picture(40, 20), "JPEG", exif=b"Exif\x00\x00" + b"garbage" * 10)
    image = opened(data)
    assert image.size == (40, 20)
    assert image.pixels()[0].shape == (20, 40, 3)


def test_pixels_are_bounded() -> None:
    data = images.file(images.picture(64, 48))
    assert opened(data, 64 * 48).size == (64, 48)
    with pytest.raises(ImageTooLarge, match="at most 3071 are allowed"):
        opened(data, 64 * 48 - 1)


def test_rows_that_a_complete_file_lacks_are_black() -> None:
    pixels, _ = opened(png_of(500, 500)).pixels()  # Pillow's reading, and with it vLLM's
    assert pixels.shape == (500, 500, 3)
    assert not pixels.any()


def png_of(width: int, height: int) -> bytes:
    """A header for so many pixels, and data for one row of them."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\x00" * (1 + 3 * width))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("form", ["AVIF", "JPEG", "PNG", "TIFF", "WEBP"])
def test_the_size_is_that_of_the_turned_image(form: str) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        image = opened(images.file(images.picture(40, 20), form, exif=exif))
        assert image.size == ((40, 20) if orientation < 5 else (20, 40)), orientation
        assert image.pixels()[0].shape == (*reversed(image.size), 3)


@pytest.mark.parametrize("orientation", [1, 6])
def test_an_orientation_behind_the_pixels(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = images.file(images.picture(40, 20))
    end = data.rindex(b"IEND") - 4
    image = opened(data[:end] + chunk(b"eXIf", exif.tobytes()[len(b"Exif\0\0") :]) + data[end:])
    assert image.size == ((40, 20) if orientation == 1 else (20, 40))
    assert image.pixels()[0].shape == (*reversed(image.size), 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_what_is_decoded_is_kept_by_nobody(form: str) -> None:
    """A request has many images, each of which may be small as a file and huge as pixels."""
    data = images.file(Image.new("RGB", (2500, 2500)), form)
    opened(data, max_pixels=1 << 24).pixels()
    before = resident_bytes()
    many = [opened(data, max_pixels=1 << 24) for _ in range(8)]
    assert {image.size for image in many} == {(2500, 2500)}
    for image in many[:4]:
        image.pixels()
    assert resident_bytes() - before < 2 * 4 * 2500 * 2500


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_jpeg_of_endless_scans_is_refused_by_its_header() -> None:
    """Each is a pass over all pixels, which takes a second where there are many, and 95 bytes."""
    data = images.file(images.picture(64, 48), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    assert opened(data[:-2] + last * 90 + data[-2:]).pixels()[0].shape == (48, 64, 3)
    with pytest.raises(ImageTooLarge, match="more than 100 scans"):
        opened(data[:-2] + last * 100 + data[-2:])
    # They count where a decoder finds them, whatever is between them.
    with pytest.raises(ImageTooLarge, match="more than 100 scans"):
        opened(data[:-2] + (last + b"rest\xff\xfe\x00\x06\xff\xd9xx\xff\xff") * 100 + data[-2:])


def test_a_plain_ppm_of_endless_comments_is_refused_by_its_header() -> None:
    """Megabytes of them took Pillow minutes."""
    data = b"P3\n1 1\n255\n%b1 2 3"
    assert opened(data % (b"#\n" * 1000)).pixels()[0].tolist() == [[[1, 2, 3]]]
    with pytest.raises(UnreadableImage, match="more than 1000 comments"):
        opened(data % (b"#\n" * 1001))


def test_what_follows_on_a_jpeg_or_is_within_its_metadata_are_no_scans() -> None:
    data = images.file(images.picture(64, 48), "JPEG", comment=b"\xff\xda" * 200)
    assert opened(data + b"\xff\xda" * 200).pixels()[0].shape == (48, 64, 3)


def test_an_avif_has_the_thread_that_decodes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, threads = _avif.AvifDecoder, []

    def counted(data: bytes, codec: str, most: int) -> object:
        threads.append(most)
        return decoder(data, codec, most)

    monkeypatch.setattr(_avif, "AvifDecoder", counted)
    OpenedImage(images.file(images.picture(64, 48), "AVIF"), max_pixels=1 << 20).pixels()
    assert set(threads) == {1}
