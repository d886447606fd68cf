"""What members have probably cached, known by the exact IDs of the prompts they were given.

A prompt is cut into blocks of a fixed number of IDs. A block's hash covers the blocks before it, so equal
hashes mean equal prefixes; what else an engine's cache depends on (model, cache salt, media) goes into the
``seed``. The index is approximate: an engine may have evicted what it lists. Who uses it compares its
prediction with what engines report, and forgets a member that has visibly lost its cache.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

Block = bytes


def block_hashes(token_ids: Sequence[int], *, block: int, max_blocks: int, seed: bytes = b"") -> list[Block]:
    """Of the whole blocks of ``block`` IDs at the front of the prompt, at most ``max_blocks`` of them."""
    count = min(len(token_ids) // block, max_blocks)
    packed = array("Q", token_ids[: count * block]).tobytes()
    width = 8 * block
    hashes: list[Block] = []
    last = blake2b(seed, digest_size=16).digest()
    for start in range(0, count * width, width):
        last = blake2b(packed[start : start + width], digest_size=16, key=last).digest()
        hashes.append(last)
    return hashes


class PrefixIndex:
    """Block to the members that hold it, for at most ``max_blocks`` blocks; the longest unused go first."""

    __slots__ = ("_holders", "_max_blocks")

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holders: OrderedDict[Block, frozenset[str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._holders)}/{self._max_blocks}>"

    def add(self, member: str, blocks: Sequence[Block]) -> None:
        """``member`` has computed or received these."""
        nobody: frozenset[str] = frozenset()
        joined: dict[frozenset[str], frozenset[str]] = {}  # one set for all blocks that the same members hold
        # Last block first, so that eviction shortens prefixes from their ends.
        for block in reversed(blocks):
            holders = self._holders.get(block, nobody)
            if member not in holders:
                if holders not in joined:
                    joined[holders] = holders | {member}
                self._holders[block] = joined[holders]
            self._holders.move_to_end(block)
        while len(self._holders) > self._max_blocks:
            self._holders.popitem(last=False)

    def cached(self, blocks: Sequence[Block]) -> dict[str, int]:
        """How many leading blocks each member holds; members that hold none are left out."""
        counts: dict[str, int] = {}
        still: frozenset[str] | None = None
        for depth, block in enumerate(blocks, 1):
            holders = self._holders.get(block, frozenset())
            still = holders if still is None else still & holders
            if not still:
                break
            for member in still:
                counts[member] = depth
        return counts

    def forget(self, member: str) -> None:
        """``member`` has lost its cache. Linear in the size of the index: for restarts, not for requests."""
        for block, holders in list(self._holders.items()):
            if member in holders:
                rest = holders - {member}
                if rest:
                    self._holders[block] = rest
                else:
                    del self._holders[block]
