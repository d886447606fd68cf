"""A machine's whole state as bytes: a version and the states of its parts."""

from __future__ import annotations

from typing import Final

import msgspec

from render_tier.core.outlet import OutletState
from render_tier.core.stop_gate import GateState
from render_tier.core.walk import WalkState

SNAPSHOT_VERSION: Final = 2


class SnapshotError(ValueError):
    """Bytes that are not a snapshot of a machine with this grammar and these options."""


class Snapshot(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """``tokens``: read so far. ``pending``: bytes of an unfinished character. ``ledger``: `Ledger.dump`."""

    tokens: int
    pending: bytes
    ledger: tuple[int, list[int]]
    gate: GateState | None
    walk: WalkState
    outlet: OutletState

    def encode(self) -> bytes:
        return _VERSION + _ENCODER.encode(self)


def decode(data: bytes) -> Snapshot:
    """Raises SnapshotError for bytes that `Snapshot.encode` cannot have given."""
    if data[:1] != _VERSION:
        raise SnapshotError("unknown snapshot version")
    try:
        return _DECODER.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise SnapshotError(f"damaged snapshot: {error}") from None


_VERSION: Final = bytes([SNAPSHOT_VERSION])
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Snapshot)
