"""Paged KV memory: one array of fixed-size blocks, the same layout for every engine of a model.

With each block goes room for one *state*: what the last layer made of a prompt's last token, which lies in
that block. The first output token comes from it without computing the prompt's last token again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class KVLayout:
    """Shape of the KV of one block: ``layers x (key, value) x kv_heads x block_size x head_dim`` float32;
    ``state`` numbers of float32 are a state."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    state: int

    @property
    def bytes_per_block(self) -> int:
        return self.layers * 2 * self.block_size * self.kv_heads * self.head_dim * 4

    def bytes_of(self, blocks: int) -> int:
        """Bytes of a prompt that has so many blocks: their KV and its state."""
        return self.bytes_per_block * blocks + self.state * 4

    def describe(self) -> str:
        """Text that is equal exactly when two engines can exchange blocks as bytes."""
        return (
            f"float32-le layers={self.layers} kv_heads={self.kv_heads} "
            f"head_dim={self.head_dim} block_size={self.block_size} state={self.state}"
        )


@dataclass(frozen=True)
class Place:
    """A ``KVStore`` in its process: addresses of first block and first state, and the number of blocks."""

    data: int
    states: int
    blocks: int

    def regions(self, layout: KVLayout) -> list[tuple[int, int]]:
        """Address and bytes of all blocks and of all states."""
        return [
            (self.data, self.blocks * layout.bytes_per_block),
            (self.states, self.blocks * layout.state * 4),
        ]


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
        self._states: FloatArray = reserve(layout.state * blocks).reshape(blocks, layout.state)

    def place(self) -> Place:
        """Where it lies in this process, for transfers that read memory."""
        return Place(self._data.ctypes.data, self._states.ctypes.data, self.blocks)

    def sequence(self, blocks: Sequence[int], tokens: int) -> SequenceKV:
        """The KV of the first ``tokens`` positions of the sequence that has these blocks."""
        return SequenceKV(self._data, blocks[: -(-tokens // self.layout.block_size)])

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks and their states."""
        for a, b in zip(source, target, strict=True):
            self._data[:, :, :, b] = self._data[:, :, :, a]
            self._states[b] = self._states[a]

    def state(self, blocks: Sequence[int], tokens: int) -> FloatArray:
        """The state of a prompt of ``tokens`` tokens with these blocks, ``(state,)``, to read or write."""
        state: FloatArray = self._states[blocks[(tokens - 1) // self.layout.block_size]]
        return state

    def buffers(self, blocks: Sequence[int]) -> Iterator[memoryview]:
        """The bytes of a prompt that has these blocks, without copying, in the order in which they travel: by
        layer, keys then values, by head, blocks in list order; then the state. A receiver fills the same
        buffers of its own blocks."""
        spans = list(runs(blocks))
        for layer in range(self.layout.layers):
            for kind in range(2):
                for head in range(self.layout.kv_heads):
                    for first, end in spans:
                        part = self._data[layer, kind, head, first:end].reshape(-1)
                        yield part.view(np.uint8).data
        yield self._states[blocks[-1]].view(np.uint8).data


class SequenceKV:
    """Keys and values of one sequence by position. Where its blocks lie changes no number, only the time."""

    def __init__(self, data: FloatArray, blocks: Sequence[int]) -> None:
        layers, two, heads, _, self._block_size, dim = data.shape
        self.layers = layers
        used = np.asarray(blocks, dtype=np.intp)
        first, end = int(used[0]), int(used[0]) + len(used)
        run = np.array_equal(used, np.arange(first, end))
        self._data, self._blocks, self._shape = data, used, (two, heads, -1, dim)
        self._run = data[:, :, :, first:end].reshape(layers, two, heads, -1, dim) if run else None
        """All positions as a view, which needs the blocks to be one run; the allocator prefers that."""

    def read(self, layer: int, tokens: int) -> tuple[FloatArray, FloatArray]:
        """Keys and values of the first ``tokens`` positions, each ``(kv_heads, tokens, head_dim)``: views if
        possible, else copies."""
        if self._run is not None:
            both = self._run[layer]
        else:
            both = self._data[layer][:, :, self._blocks].reshape(self._shape)
        return both[0, :, :tokens], both[1, :, :tokens]

    def write(self, layer: int, start: int, keys: FloatArray, values: FloatArray) -> None:
        """Store ``(kv_heads, tokens, head_dim)`` keys and values at positions ``start…``."""
        end = start + keys.shape[1]
        if self._run is not None:
            both = self._run[layer]
            both[0, :, start:end] = keys
            both[1, :, start:end] = values
            return
        block, slot = np.divmod(np.arange(start, end), self._block_size)
        self._data[layer, 0][:, self._blocks[block], slot] = keys
        self._data[layer, 1][:, self._blocks[block], slot] = values

    @property
    def scattered(self) -> bool:
        """Whether the blocks are not one run."""
        return self._run is None

    def planes(self, layer: int, kind: int) -> FloatArray:
        """All keys (``kind`` 0) or values (1) of the store, ``(kv_heads, places, head_dim)``."""
        _, heads, _, dim = self._shape
        planes: FloatArray = self._data[layer, kind].reshape(heads, -1, dim)
        return planes

    def offsets(self, room: int) -> npt.NDArray[np.int64]:
        """Where each position lies in a head's plane, in numbers; then ``room`` more integers."""
        slots = self._blocks[:, None] * self._block_size + np.arange(self._block_size)
        return np.concatenate([slots.reshape(-1) * self._shape[-1], np.zeros(room, dtype=np.int64)])
