"""The last turn of each conversation that a client has named, as token IDs; bounded in number, bytes, time.

A turn is filed under a hash of whose conversation it is, so that no name reaches another tenant's; and it is
only ever offered to the render tier, which takes it for the beginning of a prompt when the messages of the
request spell it, byte for byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from render_tier.protocol.unreadable import UNREADABLE


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn as the model saw and wrote it."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """With the stop token, if there was one."""

    def pack(self) -> bytes:
        return msgspec.msgpack.encode((self.prompt_token_ids, self.output_token_ids))


_decoder = msgspec.msgpack.Decoder(tuple[list[int], list[int]])


def unpack(value: bytes) -> Spoken | None:
    """None for what nobody has packed."""
    try:
        return Spoken(*_decoder.decode(value))
    except UNREADABLE:
        return None


def conversation_key(tenant: str, model: str | None, conversation_id: str) -> bytes:
    """Models have vocabularies of their own, so each has conversations of its own."""
    digest = blake2b(digest_size=32)
    for part in (tenant, model or "", conversation_id):
        encoded = part.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8))
        digest.update(encoded)
    return digest.digest()


class Conversations:
    """The longest unspoken go first. Times are seconds on the caller's one clock, which never go back."""

    __slots__ = ("_entries", "_max_bytes", "_max_entries", "_seconds", "_size")

    def __init__(self, max_entries: int, max_bytes: int, seconds: float) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        """Key to the end of its time and a packed turn, in the order in which they end."""
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Conversations {len(self)}/{self._max_entries}, {self._size}/{self._max_bytes} bytes>"

    def put(self, key: bytes, turn: bytes, now: float) -> None:
        """In place of the turn before. A turn that is larger than all that may be kept leaves nothing."""
        self._drop(key)
        if len(turn) > self._max_bytes:
            return
        self._entries[key] = now + self._seconds, turn
        self._size += len(turn)
        self._forget(now)

    def get(self, key: bytes, now: float) -> bytes | None:
        self._forget(now)
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def _forget(self, now: float) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            within = len(self._entries) <= self._max_entries and self._size <= self._max_bytes
            if within and now < self._entries[oldest][0]:
                return
            self._drop(oldest)

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= len(entry[1])
