"""KV transfer protocol, version 3: frames and messages. Pure: bytes in, values out.

A decode engine (D) opens one TCP connection to the prefill engine (P) for each request:

    D → P  HELLO      version, compatibility, engine id, request id, block ids, token count, prompt digest,
                      how the blocks shall travel
    P → D  ACCEPT     bytes to come, lease seconds          or REFUSE reason, message (P closes)
    D → P  HEARTBEAT  while the request is queued on D      P → D HEARTBEAT, or REFUSE if the lease has ended
    D → P  PULL       D has allocated blocks
    P → D  DATA       the prompt's bytes in the order of ``KVStore.buffers``
    D → P  DONE       everything has arrived: P frees the blocks

When the blocks travel over NIXL, the last two are

    P → D  MEMORY     NIXL agent, addresses; D reads the blocks out of P's memory
    D → P  DONE       everything has been read
    P → D  DONE       and was held until now: P frees the blocks

without which D could have read what P had given to another request meanwhile.

D gives a claim up by closing the connection.

A frame is a header ``kind u8, zero u8 x3, length u32`` (big-endian) and ``length`` bytes: one JSON message,
except DATA, whose length field is zero and whose byte count ACCEPT has announced. An ACCEPT spends the lease:
if the connection ends in any way after it, P frees the blocks, and nobody can claim them again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Literal, TypeVar

import msgspec

from render_tier.protocol.unreadable import UNREADABLE

VERSION: Final = 3
HEADER: Final = struct.Struct("!B3xI")


class Kind(IntEnum):
    HELLO = 1
    ACCEPT = 2
    REFUSE = 3
    HEARTBEAT = 4
    PULL = 5
    DATA = 6
    DONE = 7
    MEMORY = 8


Transfer = Literal["socket", "nixl"]
"""How blocks travel: as DATA on this connection, or read out of the prefill engine's memory."""


class Hello(msgspec.Struct, frozen=True):
    version: int
    compatibility: str
    engine_id: str
    request_id: str
    block_ids: list[int]
    tokens: int
    prompt_digest: str
    transfer: Transfer = "socket"


class Accept(msgspec.Struct, frozen=True):
    bytes: int
    lease_seconds: float


class Memory(msgspec.Struct, frozen=True):
    """``agent``: metadata of P's NIXL agent. ``data``, ``states``, ``blocks``: a ``kv_store.Place``."""

    agent: bytes
    data: int
    states: int
    blocks: int


class Refuse(msgspec.Struct, frozen=True):
    reason: str
    message: str


class ProtocolError(Exception):
    """The peer does not speak this protocol, or breaks its order or bounds."""


M = TypeVar("M")


def encode(kind: Kind, message: msgspec.Struct | None = None) -> bytes:
    body = b"" if message is None else msgspec.json.encode(message)
    return HEADER.pack(kind, len(body)) + body


def decode_header(header: bytes, max_length: int) -> tuple[Kind, int]:
    """Kind and body length; ``max_length`` bounds what a peer can make us read."""
    number, length = HEADER.unpack(header)
    try:
        kind = Kind(number)
    except ValueError as error:
        raise ProtocolError(f"unknown frame kind {number}") from error
    if length > max_length:
        raise ProtocolError(f"a {kind.name} frame of {length} bytes exceeds the bound of {max_length}")
    return kind, length


def decode_message(body: bytes, type_: type[M]) -> M:
    try:
        return msgspec.json.decode(body, type=type_)
    except UNREADABLE as error:
        raise ProtocolError(f"malformed {type_.__name__} message: {error}") from error


def prompt_digest(tokens: Sequence[int]) -> str:
    """Digest of a token sequence: equal exactly for equal prompts."""
    return hashlib.sha256(b"".join(token.to_bytes(8, "little") for token in tokens)).hexdigest()


def compatibility(model_fingerprint: str, layout: str, arithmetic: str, prefill_chunk: int) -> str:
    """Equal exactly when blocks of one engine continue bit for bit on the other: same weights, same block
    layout and number type, same arithmetic, same prefill chunk boundaries, same protocol."""
    text = f"v{VERSION}\n{model_fingerprint}\n{layout}\n{arithmetic}\nprefill_chunk={prefill_chunk}"
    return hashlib.sha256(text.encode()).hexdigest()
