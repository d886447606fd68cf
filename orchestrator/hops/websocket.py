"""A WebSocket to a member: whole messages come in by callback, and what goes wrong is a ``HopError``.

A message is handed over by the same call that reads it from the socket, where a reader task would be woken
for each. Frames and masks are picows's work; this adds the bound on a message that comes in several frames,
and the giving up of a handshake.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSParsedURL,
    WSTransport,
    ws_connect,
)
from yarl import URL

from orchestrator.hops.errors import Absent, Garbled, HopName, NotOffered, Unreachable

_CONTROL: Final = frozenset({WSMsgType.PING, WSMsgType.PONG, WSMsgType.CLOSE})
_LAST_WORDS_SECONDS: Final = 1.0
"""For the other side to take what has been sent, when a connection is closed."""

# What a peer does wrong ends the connection, and whoever uses it says so.
_log = logging.getLogger(__name__)
_log.setLevel(logging.CRITICAL)


class Owner(Protocol):
    """Who a WebSocket belongs to. Nothing is called after ``lost``."""

    def message(self, data: bytes) -> None: ...

    def writable(self) -> None:
        """The other side takes again what it did not take before."""

    def lost(self) -> None:
        """The connection has ended, or is of no use any more."""


class WebSocket(WSListener):
    """``max_message_bytes`` bounds what comes in."""

    def __init__(self, owner: Owner, max_message_bytes: int) -> None:
        self._owner: Owner | None = owner
        self._max_message_bytes = max_message_bytes
        self._transport: WSTransport | None = None
        self._parts: list[bytes] = []
        """Of a message whose last frame is still to come."""
        self._size = 0
        self.blocked = False
        """The other side does not take what has been sent already."""

    def __repr__(self) -> str:
        return f"<WebSocket blocked={self.blocked} open={self._owner is not None}>"

    def send(self, message: bytes) -> None:
        assert self._transport is not None
        self._transport.send(WSMsgType.BINARY, message)

    def abort(self) -> None:
        """The owner has no more use for it, and is told nothing more."""
        self._owner = None
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    async def close(self) -> None:
        """Part in peace, from a peer that lets us."""
        self._owner = None
        transport = self._transport
        if transport is None:
            return
        transport.send_close(WSCloseCode.OK)
        transport.disconnect()
        _, unfinished = await asyncio.wait([self._watcher], timeout=_LAST_WORDS_SECONDS)
        if unfinished:
            transport.disconnect(graceful=False)
            await self._watcher

    # ---- WSListener ----------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._watcher = asyncio.get_running_loop().create_task(self._watch(transport), name="websocket")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        owner = self._owner
        if owner is None:
            return
        if frame.msg_type in _CONTROL:
            if frame.msg_type == WSMsgType.CLOSE:
                transport.send_close(WSCloseCode.OK)
                self._end()
            return
        # The frame's own memory is used again for the next.
        payload = frame.get_payload_as_bytes()
        self._size += len(payload)
        if self._size > self._max_message_bytes:
            self._end()
            return
        if frame.fin and not self._parts:
            self._size = 0
            owner.message(payload)
            return
        self._parts.append(payload)
        if frame.fin:
            whole = b"".join(self._parts)
            self._parts, self._size = [], 0
            owner.message(whole)

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self._owner is not None:
            self._owner.writable()

    # ---- small parts ---------------------------------------------------------------------------------------

    async def _watch(self, transport: WSTransport) -> None:
        with suppress(WSError):  # what the peer did wrong
            await transport.wait_disconnected()
        self._end()

    def _end(self) -> None:
        owner = self._owner
        self.abort()
        if owner is not None:
            owner.lost()


async def connect(
    hop: HopName,
    url: URL,
    owner: Owner,
    *,
    headers: Mapping[str, str],
    heartbeat: float,
    max_message_bytes: int,
    tls: ssl.SSLContext | None,
) -> WebSocket:
    """``url`` is that of HTTP. ``heartbeat``: seconds of silence after which a ping finds out whether the
    other side is alive. Raises ``NotOffered`` when the handshake is refused, another ``HopError`` when there
    is nobody or nothing that speaks the protocol. Being cancelled ends the connection."""
    sockets: list[socket.socket] = []

    async def connected(target: WSParsedURL) -> socket.socket:
        sockets.append(await _connected_socket(target.host, target.port))
        return sockets[-1]

    secure = url.scheme == "https"
    try:
        _transport, found = await ws_connect(
            lambda: WebSocket(owner, max_message_bytes),
            str(url.with_scheme("wss" if secure else "ws").with_user(None)),
            ssl_context=tls,
            websocket_handshake_timeout=None,
            logger_name=_log,
            enable_auto_ping=True,
            auto_ping_idle_timeout=heartbeat,
            auto_ping_reply_timeout=heartbeat / 2,
            max_frame_size=max_message_bytes,
            extra_headers=headers,
            max_redirects=0,
            socket_factory=connected,
            use_aiofastnet=False,
        )
    except BaseException as error:
        for each in sockets:
            # A handshake that is given up would leave it to the other side to end the connection.
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if isinstance(error, WSHandshakeError) and error.response is not None:
            raise NotOffered(
                hop, f"the {hop} tier offers no sessions", detail=str(error), member=str(url)
            ) from error
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise Absent(
                hop, f"the {hop} tier cannot be reached", detail=repr(error), member=str(url)
            ) from error
        if isinstance(error, WSError | ValueError):
            raise Garbled(
                hop, f"the {hop} tier's answer is not HTTP", detail=repr(error), member=str(url)
            ) from error
        raise
    if not isinstance(found, WebSocket):
        raise Unreachable(hop, f"the connection to the {hop} tier was lost", member=str(url))
    return found


async def _connected_socket(host: str, port: int) -> socket.socket:
    """To the first address that answers. Raises the last address's ``OSError``."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure
