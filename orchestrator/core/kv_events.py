"""What an engine says of its own KV cache: batches of events as vLLM publishes them over ZeroMQ.

A batch is a msgpack array (time, events, data parallel rank); an event is a map with its kind under ``type``.
Field names are vLLM 0.32's (``vllm/distributed/kv_events.py``); fields that are not looked at are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from render_tier.protocol.unreadable import UNREADABLE

BlockHash = bytes | int


class BlockStored(msgspec.Struct, tag=True, frozen=True):
    """Blocks of one prefix, in order. ``token_ids`` are those of all of them; ``extra_keys``, one entry per
    block, is what beside the IDs makes the block another one: LoRA, media, salt."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    ownership: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, frozen=True):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[KvEvent]
    data_parallel_rank: int | None = None


class GarbledEvents(ValueError):
    """A message that is not a batch of events."""


_decoder = msgspec.msgpack.Decoder(Batch)


def read_batch(payload: bytes) -> list[KvEvent]:
    """The events of one message. Raises ``GarbledEvents``, also for kinds of events that are not known: what
    they change cannot be followed."""
    try:
        return _decoder.decode(payload).events
    except UNREADABLE as error:
        raise GarbledEvents(str(error)) from error


def read_sequence(frame: bytes) -> int:
    """A sequence number, 8 bytes, the highest first; -1 ends a replay. Raises ``GarbledEvents``."""
    if len(frame) != 8:
        raise GarbledEvents(f"a sequence number of {len(frame)} bytes")
    return int.from_bytes(frame, "big", signed=True)
