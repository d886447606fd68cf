"""What a client's file cannot write into the server's log."""

from __future__ import annotations

import logging
import struct
import warnings
from contextlib import suppress
from io import BytesIO

import pytest

from render_tier.multimodal.decoding import OpenedImage, UnreadableImage
from render_tier.multimodal.silent_decoders import silence_decoders
from tests.support import images

IMAGE_WIDTH, STRIP_OFFSETS, SAMPLES_PER_PIXEL = 256, 273, 277


def tiff(compression: str | None = None) -> bytearray:
    out = BytesIO()
    images.picture(64, 48).convert("1" if compression else "RGB").save(out, "TIFF", compression=compression)
    return bytearray(out.getvalue())


def entry(data: bytearray, tag: int) -> int:
    """Where the count of the tag is, with its value behind it."""
    (at,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, at)
    places = range(at + 2, at + 2 + 12 * entries, 12)
    return next(place + 4 for place in places if struct.unpack_from("<H", data, place)[0] == tag)


def with_tag(data: bytearray, tag: int, count: int, value: int) -> bytes:
    struct.pack_into("<II", data, entry(data, tag), count, value)
    return bytes(data)


def broken_fax() -> bytes:
    data = tiff("group4")
    (start,) = struct.unpack_from("<I", data, entry(data, STRIP_OFFSETS) + 4)
    data[start + 20 : start + 60] = b"\x01" * 40
    return bytes(data)


LOGGED = {
    "by libtiff": broken_fax(),
    "as an error": with_tag(tiff(), SAMPLES_PER_PIXEL, 1, 2048),
    "as a warning": with_tag(tiff(), IMAGE_WIDTH, 1 << 30, 8),
}


@pytest.mark.parametrize("how", LOGGED)
def test_files_write_nothing(
    how: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        silence_decoders()
        with suppress(UnreadableImage):
            OpenedImage(LOGGED[how], max_pixels=1 << 20).pixels()
    assert (capfd.readouterr().err, caplog.records, warned) == ("", [], [])
