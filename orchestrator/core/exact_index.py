"""The blocks that one engine says it holds, found by the exact IDs of a prompt.

An engine's own block hashes only tie its events together. Events carry the IDs of stored blocks and the hash
of the block before them, so the blocks form a tree whose edges are the IDs of a block, and a prompt is looked
up by walking down its own IDs: no hash function has to be shared, and nothing can collide.

What cannot be placed is left out, so the index never claims a block that was not reported: blocks whose
parent is unknown, and blocks beyond the bound.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from orchestrator.core.kv_events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    GarbledEvents,
    KvEvent,
)
from orchestrator.core.media import Item

WIDTH: Final = 8
"""Bytes of an ID in a key."""

MOST_GROUPS: Final = 32
MOST_SIZES: Final = 4
"""KV cache groups of an engine, and block sizes within one; what goes beyond is left out."""

WHOLE_PREFIX: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of groups that need every block of a prefix. Others keep a window or a state only."""

Key = bytes | tuple[bytes, bytes]
"""The IDs of a block, with what else makes it another block."""

Holder = tuple[BlockHash, str | None, str | None, str | None]
"""Under which hash and where a block is held: medium, locality, ownership."""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A prompt as the index is asked for it. Engines always compute the last token of a prompt."""

    packed: bytes
    tokens: int
    """How many of the prompt's IDs can be cached."""
    model: str | None = None
    salt: str | None = None
    media: tuple[Item, ...] = ()

    @classmethod
    def of(
        cls,
        token_ids: Sequence[int],
        *,
        most: int,
        model: str | None = None,
        salt: str | None = None,
        media: tuple[Item, ...] = (),
    ) -> LookedUp:
        """``most`` bounds the IDs that are looked at."""
        tokens = max(min(len(token_ids) - 1, most), 0)
        return cls(_pack(token_ids[:tokens]), tokens, model, salt, media)

    def shown(self, start: int, end: int) -> list[tuple[str, int]]:
        """What vLLM says of the media in a block: their hashes, and where they begin, counted from the
        block's own beginning."""
        return [
            (item.hash, item.offset - start)
            for item in self.media
            if item.offset < end and start < item.offset + item.length
        ]


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None = None
    key: Key = b""
    children: dict[Key, _Node] = field(default_factory=dict)
    holders: set[Holder] = field(default_factory=set)
    hashes: set[BlockHash] = field(default_factory=set)


@dataclass(slots=True)
class _Group:
    root: _Node = field(default_factory=_Node)
    sizes: list[int] = field(default_factory=list)
    by_hash: dict[BlockHash, _Node] = field(default_factory=dict)
    kind: str | None = None


class ExactIndex:
    """At most ``max_blocks`` blocks of one engine, counted over its cache groups."""

    __slots__ = ("_groups", "_loras", "_max_blocks", "_size")

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self.clear()

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<ExactIndex {self._size}/{self._max_blocks}>"

    def clear(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._loras: set[str] = set()
        self._size = 0

    def apply(self, event: KvEvent) -> None:
        """Raises ``GarbledEvents``; the index is then in no state to be used."""
        match event:
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                self._remove(event)
            case AllBlocksCleared():
                self.clear()

    def cached_tokens(self, prompt: LookedUp) -> int:
        """Leading tokens of the prompt that the engine would find in its cache now."""
        whole = [self._depth(group, prompt) for group in self._groups.values() if group.kind in WHOLE_PREFIX]
        if whole:
            return min(whole)
        # Of groups of an unknown kind some may keep a window only, and the beginning is not in it.
        return max((self._depth(group, prompt) for group in self._groups.values()), default=0)

    def _depth(self, group: _Group, prompt: LookedUp) -> int:
        node, start = group.root, 0
        everywhere = [prompt.model] if prompt.model in self._loras else []
        while True:
            salt = [prompt.salt] if prompt.salt is not None and start == 0 else []
            for size in group.sizes:
                end = start + size
                if end > prompt.tokens:
                    continue
                extra = [*everywhere, *prompt.shown(start, end), *salt]
                child = node.children.get(_key(prompt.packed[start * WIDTH : end * WIDTH], extra))
                if child is not None and child.holders:
                    node, start = child, end
                    break
            else:
                return start

    def _store(self, event: BlockStored) -> None:
        group, size = self._group(event), event.block_size
        if group is None:
            return
        where = (event.medium, event.locality, event.ownership)
        if size < 1 or len(event.token_ids) != len(event.block_hashes) * size:
            # Moved to another medium, or with blocks left out in between: known ones are held there too.
            for block_hash in event.block_hashes:
                if (known := group.by_hash.get(block_hash)) is not None:
                    known.holders.add((block_hash, *where))
            return
        if size not in group.sizes:
            if len(group.sizes) >= MOST_SIZES:
                return
            group.sizes = sorted([*group.sizes, size], reverse=True)
        parent: _Node | None = group.root
        if event.parent_block_hash is not None:
            parent = group.by_hash.get(event.parent_block_hash)
        packed = _pack(event.token_ids)
        if event.lora_name is not None and len(self._loras) < self._max_blocks:
            self._loras.add(event.lora_name)
        for i, block_hash in enumerate(event.block_hashes):
            if parent is None:
                return
            key = _key(packed[i * size * WIDTH : (i + 1) * size * WIDTH], _extra(event, i))
            parent = self._put(group, parent, key, block_hash)
            if parent is not None:
                parent.holders.add((block_hash, *where))

    def _group(self, event: BlockStored) -> _Group | None:
        number = event.group_idx or 0
        group = self._groups.get(number)
        if group is None:
            if len(self._groups) >= MOST_GROUPS:
                return None
            group = self._groups[number] = _Group()
        if event.kv_cache_spec_kind is not None:
            group.kind = event.kv_cache_spec_kind
        return group

    def _put(self, group: _Group, parent: _Node, key: Key, block_hash: BlockHash) -> _Node | None:
        """The node below ``parent``; None when there is no room, or the hash stands for another prefix."""
        node = parent.children.get(key)
        known = group.by_hash.get(block_hash)
        if known is not None:
            return node if known is node else None
        if self._size >= self._max_blocks:
            return None
        if node is None:
            node = parent.children[key] = _Node(parent, key)
        group.by_hash[block_hash] = node
        node.hashes.add(block_hash)
        self._size += 1
        return node

    def _remove(self, event: BlockRemoved) -> None:
        group = self._groups.get(event.group_idx or 0)
        if group is None:
            return
        for block_hash in event.block_hashes:
            node = group.by_hash.get(block_hash)
            if node is not None:
                node.holders.discard((block_hash, event.medium, event.locality, event.ownership))
                self._prune(group, node)

    def _prune(self, group: _Group, node: _Node) -> None:
        """Forget what is neither held nor on the way to something held."""
        while node.parent is not None and not node.holders and not node.children:
            for block_hash in node.hashes:
                del group.by_hash[block_hash]
            self._size -= len(node.hashes)
            del node.parent.children[node.key]
            node = node.parent


def _pack(token_ids: Sequence[int]) -> bytes:
    try:
        return array("Q", token_ids).tobytes()
    except OverflowError as error:
        raise GarbledEvents("a token ID out of range") from error


def _key(token_ids: bytes, extra: list[Any]) -> Key:
    return (token_ids, msgspec.msgpack.encode(extra)) if extra else token_ids


def _extra(event: BlockStored, block: int) -> list[Any]:
    if event.extra_keys is None:
        return [] if event.lora_name is None else [event.lora_name]
    if block >= len(event.extra_keys):
        raise GarbledEvents("fewer extra keys than blocks")
    extra = event.extra_keys[block]
    if extra is None:
        return []
    if not isinstance(extra, list):
        raise GarbledEvents("extra keys of a block are not a list")
    return extra
