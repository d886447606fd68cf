"""Requests as bytes on a socket: what HTTP libraries would not send, and what two servers in a row could read
differently. The cases are for every service that faces clients.

``PATH`` stands for a path that takes a JSON body, ``SMUGGLED`` for a request that must never be answered.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"

_POST: Final = b"POST PATH HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
_ALSO_CHUNKS: Final = b"Transfer-Encoding: chunked\r\n\r\n"
_CHUNKS: Final = _POST + b"Transfer-Encoding: chunked\r\n"
_BODY: Final = b"2\r\n{}\r\n0\r\n\r\n"

REFUSED: Final[dict[str, bytes]] = {
    "two lengths that differ": _POST + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}" + SMUGGLED,
    "two lengths that are equal": _POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a list of lengths": _POST + b"Content-Length: 2, 2\r\n\r\n{}" + SMUGGLED,
    "a length with a sign": _POST + b"Content-Length: +2\r\n\r\n{}" + SMUGGLED,
    "a negative length": _POST + b"Content-Length: -2\r\n\r\n{}" + SMUGGLED,
    "a length in hex": _POST + b"Content-Length: 0x2\r\n\r\n{}" + SMUGGLED,
    "a length beyond 64 bits": _POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "chunks, then a length": _CHUNKS + b"Content-Length: 3\r\n\r\n" + _BODY + SMUGGLED,
    "a length, then chunks": _POST + b"Content-Length: 3\r\n" + _ALSO_CHUNKS + _BODY + SMUGGLED,
    "chunks not last": _POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + _BODY + SMUGGLED,
    "an unknown coding": _POST + b"Transfer-Encoding: xchunked\r\n\r\n" + _BODY + SMUGGLED,
    "a coding after a tab": _POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + _BODY + SMUGGLED,
    "a name before a space": _POST + b"Content-Length : 2\r\n\r\n{}" + SMUGGLED,
    "a folded line": _POST + b"X-Long: a\r\n b\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a folded length": _POST + b"Content-Length:\r\n 2\r\n\r\n{}" + SMUGGLED,
    "a NUL in a value": _POST + b"X-A: a\0b\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a NUL in a name": _POST + b"X-\0A: b\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a bare CR in a value": _POST + b"X-A: a\rContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a bare LF behind a name": _POST + b"X-A\n: a\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a chunk's size with rubbish": _CHUNKS + b"\r\n2x\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk's size beyond 64 bits": _CHUNKS + b"\r\n" + b"f" * 17 + b"\r\n{}\r\n0\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + SMUGGLED,
    "no host": b"GET /health HTTP/1.1\r\n\r\n" + SMUGGLED,
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
}  # fmt: skip
"""None is answered with a 2xx, nor is what stands behind it answered at all."""


async def exchange(port: int, data: bytes, *, end: bool = False) -> bytes:
    """Everything that is answered to ``data`` until the other side closes. ``end``: we close our half after
    it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        if end:
            writer.write_eof()
        return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def answers(received: bytes) -> list[int]:
    """The statuses of the answers in what was received."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
