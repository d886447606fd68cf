"""Paged KV memory: one array of fixed-size blocks, the same layout for every engine of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


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


class KVStore:
    """The blocks' memory. Who may touch which block is the scheduler's business; nothing is checked here.

    The array is reserved, not touched: pages cost memory only once a block is written.
    """

    def __init__(self, layout: KVLayout, blocks: int) -> None:
        self.layout = layout
        shape = (layout.layers, 2, layout.kv_heads, blocks, layout.block_size, layout.head_dim)
        self._data: FloatArray = np.empty(shape, dtype=np.float32)

    def read(self, layer: int, blocks: Sequence[int], tokens: int) -> tuple[FloatArray, FloatArray]:
        """Keys and values of the first ``tokens`` positions, each ``(kv_heads, tokens, head_dim)``.

        A view when the blocks are one run (the allocator prefers that), else a copy with the same numbers.
        """
        layout = self.layout
        used = blocks[: -(-tokens // layout.block_size)]
        first = used[0]
        if used[-1] - first + 1 == len(used) and all(block == first + i for i, block in enumerate(used)):
            both = self._data[layer, :, :, first : first + len(used)]
        else:
            both = self._data[layer][:, :, used]
        flat = both.reshape(2, layout.kv_heads, -1, layout.head_dim)
        return flat[0, :, :tokens], flat[1, :, :tokens]

    def write(
        self, layer: int, blocks: Sequence[int], start: int, keys: FloatArray, values: FloatArray
    ) -> None:
        """Store ``(kv_heads, tokens, head_dim)`` keys and values at positions ``start…``."""
        size = self.layout.block_size
        total, done = keys.shape[1], 0
        while done < total:
            position = start + done
            block, slot = blocks[position // size], position % size
            count = min(size - slot, total - done)
            self._data[layer, 0, :, block, slot : slot + count] = keys[:, done : done + count]
            self._data[layer, 1, :, block, slot : slot + count] = values[:, done : done + count]
            done += count

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
