"""Prefill: the KV of one chunk of a prompt, and the state of the prompt's last token, on all threads.

Theory of operation. How work is cut up depends on the chunk's length alone, so that numbers do not depend on
the number of threads.

- A long chunk is cut into slices of consecutive tokens. A slice goes through a layer on one thread: its
  products have columns enough to be efficient, and its activations stay in the cache. Slices meet twice a
  layer: before attention, when all keys and values are written, and after it. Attention is shared out by
  tokens and heads, because later tokens have more of it.
- A short chunk is one slice, as weights should be read for as many columns as there are, and the threads
  share its products by rows and its attention by heads.
- The rest of the last layer, after its keys and values, is computed for the prompt's last token alone: by
  itself, whatever else is asked for.

Activations are kept as ``steps`` say, from the embedding to the end of the last layer. A slice is filled up
with columns of zeros, which stay zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.elementwise import Rotary, Turns, grouped, ungrouped
from orchestrator.embedded.kv_store import KVStore
from orchestrator.embedded.scratch import Scratch
from orchestrator.embedded.steps import Phase, Piece, Rows, Steps, Stored
from orchestrator.embedded.weights import FloatArray, LayerWeights, ModelConfig, Weights
from orchestrator.embedded.workers import Workers

SLICE_TOKENS = 256
"""Bound of a slice."""

PIECE_ROWS = 384
ROW_UNIT = 48
"""Bound of the rows of a product that a thread takes of a lone slice, or whose two factors of the activation
are computed at a time; a multiple of so many."""


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """``0…count-1`` in nearly equal ranges ``(first, end)``."""
    return list(itertools.pairwise(count * part // parts for part in range(parts + 1)))


def slices(count: int) -> list[tuple[int, int]]:
    """The slices of a chunk of ``count`` tokens: one, or an even number."""
    return cut(count, 1 if count <= SLICE_TOKENS else 2 * -(-count // (2 * SLICE_TOKENS)))


def row_ranges(count: int) -> list[Rows]:
    """A matrix's rows in nearly equal ranges within the bound."""
    ranges = cut(-(-count // ROW_UNIT), -(-count // PIECE_ROWS))
    return [(first * ROW_UNIT, min(end * ROW_UNIT, count)) for first, end in ranges]


class _Slice:
    """Tokens ``start…start+count-1`` of a sequence on their way through the layers, the first columns of
    ``x``, and the steps of that way: phases, if the threads share them (``split``)."""

    def __init__(
        self,
        config: ModelConfig,
        inner: int,
        x: FloatArray,
        start: int,
        count: int,
        steps: Steps,
        scratch: Scratch,
        *,
        split: bool,
    ) -> None:
        self.x = x
        self._split = split
        self.start = start
        self.count = count
        self._config = config
        self._groups, _, self._lanes = x.shape
        self._steps = steps
        self._scratch = scratch
        dim, heads, kv_heads = config.head_dim, config.heads, config.kv_heads
        self._norm = self._take("norm", config.hidden_size)
        self._queries, self._mixed = (self._take(name, heads * dim) for name in ("queries", "mixed"))
        self._keys, self._values = (self._take(name, kv_heads * dim) for name in ("keys", "values"))

        def by_head(x: FloatArray, *heads: int) -> FloatArray:
            return x.reshape(self._groups, *heads, dim, self._lanes)

        self._query_heads = by_head(self._queries, heads)
        self._key_heads, self._value_heads = by_head(self._keys, kv_heads), by_head(self._values, kv_heads)
        shared = (kv_heads, heads // kv_heads)
        self._query_groups, self._mixed_groups = (by_head(x, *shared) for x in (self._queries, self._mixed))
        self._gate, self._up = (self._take(name, inner) for name in ("gate", "up"))

    def _take(self, name: str, features: int) -> FloatArray:
        """Scratch memory for activations."""
        return self._scratch.take(name, self._groups, features, self._lanes)

    def last(self, scratch: Scratch) -> _Slice:
        """The last token by itself, before the attention of a layer; ``scratch`` is its own."""
        group, lane = divmod(self.count - 1, self._lanes)
        lanes = self._steps.lanes(1)
        x, queries = (grouped(x[group, :, lane][None], lanes) for x in (self.x, self._queries))
        position, inner = self.start + self.count - 1, self._gate.shape[1]
        token = _Slice(self._config, inner, x, position, 1, self._steps, scratch, split=True)
        token._queries[:] = queries
        return token

    def _product(
        self, matrix: FloatArray, x: FloatArray, out: FloatArray, *, adding: bool = False
    ) -> list[Piece]:
        ranges = row_ranges(len(matrix)) if self._split else [(0, len(matrix))]
        return [[self._steps.multiply(matrix, x, out, rows, adding=adding)] for rows in ranges]

    def project(self, layer: LayerWeights, index: int, turns: Turns, stored: Stored) -> list[Phase]:
        """Queries, and the keys and values of the layer into the store."""
        config, steps = self._config, self._steps
        keys, values = self._key_heads, self._value_heads
        tokens = range(self.start, self.start + self.count)
        return [
            [[steps.normalize(self.x, layer.input_norm, config.rms_norm_eps, self._norm)]],
            [
                *self._product(layer.q, self._norm, self._queries),
                *self._product(layer.k, self._norm, self._keys),
                *self._product(layer.v, self._norm, self._values),
            ],
            [
                [steps.turn(self._query_heads, turns, config.head_dim**-0.5)],
                [steps.turn(keys, turns, 1.0), *steps.keep(keys, values, stored, index, tokens)],
            ],
        ]

    def attend(self, index: int, stored: Stored) -> Phase:
        """Attention, longest pieces first."""
        queries, mixed, step = self._query_groups, self._mixed_groups, self._steps.queries
        return [
            [self._steps.attend(queries, stored, index, head, mixed, self.start, range(first, end))]
            for first in reversed(range(0, self.count, step))
            for end in (min(first + step, self.count),)
            for head in range(self._config.kv_heads)
        ]

    def mix(self, layer: LayerWeights) -> list[Phase]:
        """What attention found, and the layer's second half."""
        steps, gate, up = self._steps, self._gate, self._up
        return [
            self._product(layer.o, self._mixed, self.x, adding=True),
            [[steps.normalize(self.x, layer.post_norm, self._config.rms_norm_eps, self._norm)]],
            [
                [
                    steps.multiply(layer.gate, self._norm, gate, rows),
                    steps.multiply(layer.up, self._norm, up, rows),
                    steps.gate(gate, up, rows),
                ]
                for rows in row_ranges(len(layer.gate))
            ],
            self._product(layer.down, gate, self.x, adding=True),
        ]


def side_by_side(parts: list[list[Phase]]) -> list[Phase]:
    """The phases of several slices as one, in which each slice is a piece; those of one slice as they are."""
    if len(parts) == 1:
        return parts[0]
    return [[[step for phase in phases for piece in phase for step in piece] for phases in parts]]


class ChunkPass:
    """One forward pass at a time over one chunk."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        store: KVStore,
        rotary: Rotary,
        steps: Steps,
        workers: Workers,
    ) -> None:
        self._config = config
        self._weights = weights
        self._store = store
        self._rotary = rotary
        self._steps = steps
        self._workers = workers
        self._scratch: list[Scratch] = []
        self._scratch_of_last = Scratch()

    def compute(
        self, tokens: Sequence[int], start: int, blocks: Sequence[int], *, ends: bool, hidden: bool
    ) -> FloatArray | None:
        """See ``Llama.prefill``."""
        end = start + len(tokens)
        stored = self._steps.stored(self._store.sequence(blocks, end))
        work = self._sliced(np.asarray(tokens), start)
        turns = [self._rotary.columns(part.start, part.start + part.count, part.x.shape[2]) for part in work]
        *others, last = self._weights.layers

        def project(index: int) -> list[list[Phase]]:
            layer = self._weights.layers[index]
            return [part.project(layer, index, turn, stored) for part, turn in zip(work, turns, strict=True)]

        def attend(index: int) -> Phase:
            return [piece for part in reversed(work) for piece in part.attend(index, stored)]

        phases = side_by_side(project(0))
        for index, layer in enumerate(others):
            phases.append(attend(index))
            parts = zip((part.mix(layer) for part in work), project(index + 1), strict=True)
            phases += side_by_side([mix + following for mix, following in parts])
        self._run(phases)
        if ends:
            token = work[-1].last(self._scratch_of_last)
            self._run([token.attend(len(others), stored), *token.mix(last)])
            self._store.state(blocks, end)[:] = token.x[0, :, 0]
        if not hidden:
            return None
        self._run([attend(len(others)), *side_by_side([part.mix(last) for part in work])])
        return np.concatenate([ungrouped(part.x, part.count) for part in work])

    def _run(self, phases: list[Phase]) -> None:
        self._steps.run(phases, self._workers)

    def _sliced(self, tokens: npt.NDArray[np.intp], start: int) -> list[_Slice]:
        """The chunk's slices, before the first layer."""
        work: list[_Slice] = []
        cuts = slices(len(tokens))
        for number, (first, end) in enumerate(cuts):
            if number == len(self._scratch):
                self._scratch.append(Scratch())
            x = grouped(self._weights.embedding[tokens[first:end]], self._steps.lanes(end - first))
            shape = (start + first, end - first)
            scratch, split = self._scratch[number], len(cuts) == 1
            inner = len(self._weights.layers[0].gate)
            work.append(_Slice(self._config, inner, x, *shape, self._steps, scratch, split=split))
        return work
