"""Prefill: the KV of one chunk of a prompt, on all threads.

Theory of operation. How work is cut up depends on the chunk's length alone, so that numbers do not depend on
the number of threads.

- A long chunk is cut into slices of consecutive tokens. A slice goes through a layer in one piece of work on
  one thread: its products are large enough for BLAS to be efficient, and its activations stay in the cache.
  Slices meet once a layer: when all keys and values of the layer are written, attention may read them.
- A short chunk is one slice, as BLAS is slow with few columns, and the threads share its products by rows
  and its attention by heads.

Activations are kept with tokens as columns, ``(features, tokens)``. Then ``weights @ activations`` is the
product for which OpenBLAS is fastest (CPU ms a token for SmolLM2-135M on a 2.1 GHz core with AVX-512: 1.75
with 128 columns, 1.55 with 256, 1.50 with 512; with tokens as rows 2.04, 1.68, 1.56), and heads are rows: no
step moves them about.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from orchestrator.embedded.elementwise import Rotary, swiglu
from orchestrator.embedded.kv_store import KVStore, SequenceKV
from orchestrator.embedded.weights import FloatArray, LayerWeights, ModelConfig, Weights
from orchestrator.embedded.workers import Piece, Workers

SLICE_TOKENS = 256
"""Bound of a slice."""

ATTENTION_COLUMNS = 128
"""Queries that attend at a time: scores that lie in the cache, and few scores of keys after the query."""

SAFE_SCORE = np.float32(60.0)
"""Scores within this bound need no shift before ``exp``: neither they nor their sum overflow or vanish."""

PIECE_ROWS = 288
"""Bound of the rows of a product that a thread takes of a lone slice."""


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """``0…count-1`` in nearly equal ranges ``(first, end)``."""
    return list(itertools.pairwise(count * part // parts for part in range(parts + 1)))


def slices(count: int) -> list[tuple[int, int]]:
    """The slices of a chunk of ``count`` tokens: one, or an even number."""
    return cut(count, 1 if count <= SLICE_TOKENS else 2 * -(-count // (2 * SLICE_TOKENS)))


def one_by_one(pieces: list[Piece]) -> None:
    for piece in pieces:
        piece()


class Scratch:
    """Arrays that are used again and again, so that their memory need not be taken afresh each time."""

    def __init__(self) -> None:
        self._memory: dict[str, FloatArray] = {}

    def take(self, name: str, *shape: int) -> FloatArray:
        """An array of undefined content; what was taken before under the name is overwritten."""
        size = int(np.prod(shape))
        memory = self._memory.get(name)
        if memory is None or len(memory) < size:
            memory = self._memory[name] = np.empty(size, dtype=np.float32)
        return memory[:size].reshape(shape)


class _Slice:
    """Tokens ``start…end-1`` of a sequence on their way through the layers. ``share`` computes pieces of work
    on it; ``alone``: they may run at the same time."""

    def __init__(
        self, x: FloatArray, start: int, rotary: Rotary, scratch: Scratch, workers: Workers | None
    ) -> None:
        self.alone = workers is not None
        self.share = one_by_one if workers is None else workers.run
        self.x = x
        self.start = start
        self.count = x.shape[1]
        self.end = start + self.count
        self.turns = rotary.columns(start, self.end)
        self.scratch = scratch
        self.queries = x  # replaced by the first projection

    def rows(self, matrix: FloatArray) -> list[tuple[int, int]]:
        """How the rows of a product are shared out."""
        return cut(len(matrix), -(-len(matrix) // PIECE_ROWS) if self.alone else 1)

    def product(self, name: str, matrix: FloatArray, x: FloatArray) -> tuple[FloatArray, list[Piece]]:
        """``matrix @ x`` in the scratch memory of that name, once the pieces are computed."""
        out = self.scratch.take(name, len(matrix), x.shape[1])
        pieces: list[Piece] = [
            functools.partial(np.matmul, matrix[first:end], x, out=out[first:end])
            for first, end in self.rows(matrix)
        ]
        return out, pieces


class ChunkPass:
    """One forward pass at a time over one chunk."""

    def __init__(
        self, config: ModelConfig, weights: Weights, store: KVStore, rotary: Rotary, workers: Workers
    ) -> None:
        self._config = config
        self._weights = weights
        self._store = store
        self._rotary = rotary
        self._workers = workers
        self._scratch: list[Scratch] = []
        self._epsilon = np.float32(config.rms_norm_eps)
        self._per_feature = np.float32(1.0 / config.hidden_size)
        self._scale = np.float32(config.head_dim**-0.5)
        self._ones = np.ones((1, rotary.positions), dtype=np.float32)
        """Sums columns by a product."""
        count = ATTENTION_COLUMNS
        self._future = np.tril(np.full((count, count), -np.inf, dtype=np.float32), k=-1)

    def compute(
        self, tokens: Sequence[int], start: int, blocks: Sequence[int], *, hidden: bool
    ) -> FloatArray | None:
        """See ``Llama.prefill``."""
        stored = self._store.sequence(blocks, start + len(tokens))
        ids = np.asarray(tokens)
        work: list[_Slice] = []
        cuts = slices(len(tokens))
        workers = self._workers if len(cuts) == 1 else None
        for number, (first, end) in enumerate(cuts):
            if number == len(self._scratch):
                self._scratch.append(Scratch())
            x = np.ascontiguousarray(self._weights.embedding[ids[first:end]].T)
            work.append(_Slice(x, start + first, self._rotary, self._scratch[number], workers))
        last = len(self._weights.layers) - 1
        self._workers.run([functools.partial(self._project, part, 0, stored) for part in work])
        for index in range(last):
            self._workers.run([functools.partial(self._layer, part, index, stored) for part in work])
        if not hidden:
            return None
        self._workers.run([functools.partial(self._attend_and_mix, part, last, stored) for part in work])
        return np.concatenate([part.x.T for part in work])

    def _layer(self, part: _Slice, index: int, stored: SequenceKV) -> None:
        """The rest of a layer, and the next one up to its keys and values."""
        self._attend_and_mix(part, index, stored)
        self._project(part, index + 1, stored)

    def _project(self, part: _Slice, index: int, stored: SequenceKV) -> None:
        """Queries, and the keys and values of the layer into the store."""
        config, layer = self._config, self._weights.layers[index]
        normed = self._norm(part, layer.input_norm)
        products = [
            part.product(name, matrix, normed)
            for name, matrix in zip("qkv", (layer.q, layer.k, layer.v), strict=True)
        ]
        part.share([piece for _, pieces in products for piece in pieces])
        queries, keys, values = (out.reshape(-1, config.head_dim, part.count) for out, _ in products)
        part.queries = self._rotary.turn_columns(queries, part.turns)
        part.queries *= self._scale
        keys = self._rotary.turn_columns(keys, part.turns)
        stored.write(index, part.start, keys.transpose(0, 2, 1), values.transpose(0, 2, 1))

    def _attend_and_mix(self, part: _Slice, index: int, stored: SequenceKV) -> None:
        layer = self._weights.layers[index]
        mixed, pieces = self._attention(part, index, stored)
        part.share(pieces)
        added, pieces = part.product("sum", layer.o, mixed)
        part.share(pieces)
        part.x += added
        normed = self._norm(part, layer.post_norm)
        inner = part.scratch.take("inner", 3, len(layer.gate), part.count)
        part.share(
            [
                functools.partial(self._gate_and_up, layer, normed, inner, first, end)
                for first, end in part.rows(layer.gate)
            ]
        )
        added, pieces = part.product("sum", layer.down, inner[0])
        part.share(pieces)
        part.x += added

    @staticmethod
    def _gate_and_up(
        layer: LayerWeights, normed: FloatArray, inner: FloatArray, first: int, end: int
    ) -> None:
        """Rows ``first…end-1`` of the gated activations into ``inner[0]``."""
        gate = np.matmul(layer.gate[first:end], normed, out=inner[0, first:end])
        up = np.matmul(layer.up[first:end], normed, out=inner[1, first:end])
        swiglu(gate, up, inner[2, first:end])

    def _attention(self, part: _Slice, index: int, stored: SequenceKV) -> tuple[FloatArray, list[Piece]]:
        """``(heads * head_dim, tokens)``, once the pieces are computed."""
        config = self._config
        keys, values = stored.read(index, part.end)
        queries = part.queries.reshape(config.heads, config.head_dim, part.count)
        mixed = part.scratch.take("mixed", *queries.shape)
        group = config.heads // config.kv_heads
        step = 1 if part.alone else group  # more pieces to share out, or fewer calls
        pieces: list[Piece] = [
            functools.partial(
                self._attend,
                part,
                f"scores-{head if part.alone else 0}",
                *(keys[head // group], values[head // group]),
                *(queries[head : head + step], mixed[head : head + step]),
            )
            for head in range(0, config.heads, step)
        ]
        return mixed.reshape(-1, part.count), pieces

    def _attend(
        self,
        part: _Slice,
        scratch: str,
        keys: FloatArray,
        values: FloatArray,
        queries: FloatArray,
        mixed: FloatArray,
    ) -> None:
        """Attention of query heads of one key head, few queries at a time: ``queries`` and ``mixed``
        ``(heads, head_dim, tokens)``, ``keys`` and ``values`` ``(known tokens, head_dim)``."""
        for first, end in cut(part.count, -(-part.count // ATTENTION_COLUMNS)):
            known = part.start + end
            scores = part.scratch.take(scratch, len(queries), known, end - first)
            np.matmul(keys[:known], queries[:, :, first:end], out=scores)
            self._exponentiate(scores)
            out = mixed[:, :, first:end]
            np.matmul(values[:known].T, scores, out=out)
            out /= np.matmul(self._ones[:, :known], scores)

    def _exponentiate(self, scores: FloatArray) -> None:
        """Weights ``exp(score)`` up to a factor for each column, in place; ``(heads, keys, queries)``, the
        last key being that of the last query."""
        count = scores.shape[2]
        recent = scores[:, -count:]
        recent += self._future[:count, :count]
        own = recent.diagonal(axis1=1, axis2=2)  # no query's largest score is less than that of its own key
        if not (scores.max() <= SAFE_SCORE and own.min() >= -SAFE_SCORE):
            scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)

    def _norm(self, part: _Slice, weight: FloatArray) -> FloatArray:
        """RMSNorm of every column."""
        normed = np.multiply(part.x, part.x, out=part.scratch.take("norm", *part.x.shape))
        scale = np.float32(1.0) / np.sqrt(np.add.reduce(normed, axis=0) * self._per_feature + self._epsilon)
        np.multiply(part.x, scale, out=normed)
        normed *= weight[:, None]
        return normed
