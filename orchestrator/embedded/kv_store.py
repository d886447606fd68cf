"""Paged KV memory: one array of fixed-size blocks, the same layout for every engine of a model."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Place = slice | npt.NDArray[np.intp]
"""Where a sequence's blocks lie: one ascending run, or the block numbers."""


@dataclass(frozen=True)
class KVLayout:
    """Shape of the KV of one block: ``layers x (key, value) x kv_heads x block_size x head_dim`` float32."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int

    @property
    def bytes_per_block(self) -> int:
        return self.layers * 2 * self.block_size * self.kv_heads * self.head_dim * 4

    def describe(self) -> str:
        """Text that is equal exactly when two engines can exchange blocks as bytes."""
        return (
            f"float32-le layers={self.layers} kv_heads={self.kv_heads} "
            f"head_dim={self.head_dim} block_size={self.block_size}"
        )


def runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split a block list into ascending runs ``(first, end)``, in order."""
    start = 0
    for index in range(1, len(blocks) + 1):
        if index == len(blocks) or blocks[index] != blocks[index - 1] + 1:
            yield blocks[start], blocks[index - 1] + 1
            start = index


def reserve(floats: int) -> FloatArray:
    """Zeroed memory that is taken page by page as it is touched.

    Not from numpy, which asks for huge pages: the first token of a sequence touches as many places as there
    are layers and heads, and would have 2 MB zeroed for each.
    """
    memory = mmap.mmap(-1, floats * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.float32)


class KVStore:
    """The blocks' memory. Who may touch which block is the scheduler's business; nothing is checked here.

    The array is reserved, not touched: pages cost memory only once a block is written.
    """

    def __init__(self, layout: KVLayout, blocks: int) -> None:
        self.layout = layout
        self.blocks = blocks
        shape = (layout.layers, 2, layout.kv_heads, blocks, layout.block_size, layout.head_dim)
        self._data: FloatArray = reserve(layout.bytes_per_block // 4 * blocks).reshape(shape)

    def locate(self, blocks: Sequence[int], tokens: int) -> Place:
        """Where the first ``tokens`` positions of a sequence lie; the same for every layer."""
        used = np.asarray(blocks[: -(-tokens // self.layout.block_size)], dtype=np.intp)
        first = int(used[0])
        if np.array_equal(used, np.arange(first, first + len(used))):
            return slice(first, first + len(used))
        return used

    def read(self, layer: int, place: Place, tokens: int) -> tuple[FloatArray, FloatArray]:
        """Keys and values of the first ``tokens`` positions, each ``(kv_heads, tokens, head_dim)``.

        A view when the blocks are one run (the allocator prefers that), else a copy with the same numbers.
        """
        both = self._data[layer][:, :, place]
        flat = both.reshape(2, self.layout.kv_heads, -1, self.layout.head_dim)
        return flat[0, :, :tokens], flat[1, :, :tokens]

    def write(self, layer: int, place: Place, start: int, keys: FloatArray, values: FloatArray) -> None:
        """Store ``(kv_heads, tokens, head_dim)`` keys and values at positions ``start…`` of a place."""
        layout, data = self.layout, self._data[layer]
        if isinstance(place, slice):
            flat = data[:, :, place].reshape(2, layout.kv_heads, -1, layout.head_dim)
            end = start + keys.shape[1]
            flat[0, :, start:end] = keys
            flat[1, :, start:end] = values
            return
        block, slot = np.divmod(np.arange(start, start + keys.shape[1]), layout.block_size)
        data[0][:, place[block], slot] = keys
        data[1][:, place[block], slot] = values

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks."""
        for a, b in zip(source, target, strict=True):
            self._data[:, :, :, b] = self._data[:, :, :, a]

    def buffers(self, blocks: Sequence[int]) -> Iterator[memoryview]:
        """The bytes of whole blocks, without copying, in the order in which they travel: by layer, keys then
        values, by head, blocks in list order. A receiver fills the same buffers of its own blocks."""
        spans = list(runs(blocks))
        for layer in range(self.layout.layers):
            for kind in range(2):
                for head in range(self.layout.kv_heads):
                    for first, end in spans:
                        part = self._data[layer, kind, head, first:end].reshape(-1)
                        yield part.view(np.uint8).data
