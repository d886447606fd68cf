"""Compressed request bodies, decompressed within the bound that holds for plain ones."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from render_tier.protocol.errors import ApiError, BadRequest, PayloadTooLarge

GZIP_WINDOW = 31
"""zlib's number for the largest window with a gzip header."""
ACCEPTED = "gzip"


def encoding_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The body's coding; None when it is plain. Raises ApiError (415) for one that is not accepted."""
    named = headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
    if named in ("", "identity"):
        return None
    if named in ("gzip", "x-gzip"):
        return ACCEPTED
    raise ApiError(
        f"Content-Encoding {named[:40]!r} is not supported; {ACCEPTED} is",
        status=415,
        type="Unsupported Media Type",
    )


def decompress(body: bytes, max_bytes: int) -> bytes:
    """One gzip member. Never holds more than ``max_bytes`` of output.

    Raises PayloadTooLarge when it would be more, BadRequest when ``body`` is no gzip, cut short, or followed
    by anything.
    """
    stream = zlib.decompressobj(GZIP_WINDOW)
    try:
        plain = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BadRequest(f"the request body is not gzip: {error}", type="Bad Request") from None
    if len(plain) > max_bytes:
        raise PayloadTooLarge(f"the decompressed request body is larger than {max_bytes} bytes")
    if not stream.eof:
        raise BadRequest("the gzip request body is cut short", type="Bad Request")
    if stream.unused_data:
        raise BadRequest("the gzip request body is followed by other data", type="Bad Request")
    return plain
