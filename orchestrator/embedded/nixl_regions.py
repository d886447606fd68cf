"""Where the KV of a prompt lies in the memory of two engines, as lists of pieces that pair up. Pure.

Blocks of two engines have the same shape but not the same places: the engines may have different numbers of
blocks, and a prompt other ones in each. A piece is as long as the blocks ascend on both sides together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.kv_store import KVLayout, Place

Pieces = npt.NDArray[np.uint64]
"""``(pieces, 3)``: address, bytes and device (0: main memory)."""

MAIN_MEMORY = 0


def common_runs(first: Sequence[int], second: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Split two lists of equally many blocks into runs that ascend in both: first of each, and count."""
    start = 0
    for index in range(1, len(first) + 1):
        if index < len(first) and all(blocks[index] == blocks[index - 1] + 1 for blocks in (first, second)):
            continue
        yield first[start], second[start], index - start
        start = index


def paired_pieces(
    layout: KVLayout, here: Place, mine: Sequence[int], there: Place, theirs: Sequence[int]
) -> tuple[Pieces, Pieces]:
    """The pieces of a prompt with blocks ``mine`` here and ``theirs`` there, the last one its state: piece by
    piece the same bytes. Raises ValueError if the blocks do not exist or differ in number."""
    for place, blocks in ((here, mine), (there, theirs)):
        if not blocks or not all(0 <= block < place.blocks for block in blocks):
            raise ValueError(f"blocks outside a memory of {place.blocks}")
    if len(mine) != len(theirs):
        raise ValueError(f"{len(mine)} blocks here, {len(theirs)} there")
    runs = np.array(list(common_runs(mine, theirs)), dtype=np.uint64)
    counts = runs[:, 2]
    return (
        _pieces(layout, here, runs[:, 0], counts, mine[-1]),
        _pieces(layout, there, runs[:, 1], counts, theirs[-1]),
    )


def _pieces(layout: KVLayout, place: Place, firsts: Pieces, counts: Pieces, last: int) -> Pieces:
    """A memory is ``layers x (key, value) x kv_heads`` planes of all blocks each."""
    block = layout.block_size * layout.head_dim * 4
    planes = np.arange(layout.layers * 2 * layout.kv_heads, dtype=np.uint64) * np.uint64(place.blocks * block)
    starts = np.uint64(place.data) + planes[:, None] + firsts[None, :] * np.uint64(block)
    lengths = np.broadcast_to(counts * np.uint64(block), starts.shape)
    pieces = np.stack([starts.ravel(), lengths.ravel(), np.full(starts.size, MAIN_MEMORY, np.uint64)], axis=1)
    state = layout.state * 4
    return np.concatenate([pieces, np.array([[place.states + last * state, state, MAIN_MEMORY]], np.uint64)])
