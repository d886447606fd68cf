"""One transfer connection: frames over a non-blocking socket, every operation bounded in time.

Uses the event loop's socket calls rather than streams: block bytes go from and into KV memory without a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from orchestrator.embedded.transfer_protocol import HEADER, Kind, ProtocolError, decode_header, encode


@dataclass(frozen=True)
class WireLimits:
    """``message_seconds`` bounds connecting and each control frame, ``transfer_seconds`` all block data."""

    message_seconds: float = 5.0
    transfer_seconds: float = 30.0
    max_message_bytes: int = 1 << 20


class Wire:
    """Raises OSError, TimeoutError or ProtocolError when the peer goes away, stalls or misbehaves."""

    def __init__(self, sock: socket.socket, limits: WireLimits) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    async def connect(cls, host: str, port: int, limits: WireLimits) -> Wire:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(limits.message_seconds):
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = addresses[0]
            wire = cls(socket.socket(family, kind, protocol), limits)
            try:
                await loop.sock_connect(wire._sock, address)
            except BaseException:
                wire.close()
                raise
        return wire

    async def send(self, kind: Kind, message: msgspec.Struct | None = None) -> None:
        async with asyncio.timeout(self._limits.message_seconds):
            await self._loop.sock_sendall(self._sock, encode(kind, message))

    async def expect(self, *kinds: Kind, patience: float = 0.0) -> tuple[Kind, bytes]:
        """The next frame, which must be of one of the kinds; ``patience`` seconds are added to the bound."""
        async with asyncio.timeout(self._limits.message_seconds + patience):
            header = bytearray(HEADER.size)
            await self._fill(memoryview(header))
            kind, length = decode_header(bytes(header), self._limits.max_message_bytes)
            if kind not in kinds:
                raise ProtocolError(f"unexpected {kind.name} frame")
            body = bytearray(length)
            await self._fill(memoryview(body))
        return kind, bytes(body)

    async def send_buffers(self, buffers: Iterable[memoryview]) -> None:
        async with asyncio.timeout(self._limits.transfer_seconds):
            for buffer in buffers:
                await self._loop.sock_sendall(self._sock, buffer)

    async def receive_buffers(self, buffers: Iterable[memoryview]) -> None:
        async with asyncio.timeout(self._limits.transfer_seconds):
            for buffer in buffers:
                await self._fill(buffer)

    async def _fill(self, buffer: memoryview) -> None:
        while buffer:
            count = await self._loop.sock_recv_into(self._sock, buffer)
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            buffer = buffer[count:]

    def close(self) -> None:
        self._sock.close()
