"""A host of images on loopback, for what fetches them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Answer = Callable[[str], bytes]


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def redirect(target: str, status: str = "302 Found") -> bytes:
    return f"HTTP/1.1 {status}\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()


@asynccontextmanager
async def origin(answer: Answer) -> AsyncIterator[tuple[int, list[str]]]:
    """A host on loopback: its port, and the heads of requests as they come."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer(heads[-1].split()[1]))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads
