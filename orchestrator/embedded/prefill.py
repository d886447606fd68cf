"""Prefill: the KV of one chunk of a prompt, and the state of the prompt's last token, on all threads.

Theory of operation. How work is cut up depends on the chunk's length alone, so that numbers do not depend on
the number of threads.

- A long chunk is cut into slices of consecutive tokens. A slice goes through a layer on one thread: its
  products are large enough for BLAS to be efficient, and its activations stay in the cache. Slices meet twice
  a layer: before attention, when all keys and values are written, and after it. Attention is shared out by
  slices and heads, because later slices have more of it.
- A short chunk is one slice, as weights should be read for as many columns as there are, and the threads
  share its products by rows and its attention by heads.
- The rest of the last layer, after its keys and values, is computed for the prompt's last token alone: by
  itself, whatever else is asked for.

Activations are kept with tokens as columns, ``(features, tokens)``: ``weights @ activations`` is the product
for which BLAS is fastest, too, and heads are rows, so no step moves them about. A slice is filled up with
columns of zeros, which stay zeros, to a number of columns that is good for products (``kernels``).
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence

import numpy as np

from orchestrator.embedded.elementwise import Rotary, Turns, swiglu
from orchestrator.embedded.kernels import BlasProducts, Products
from orchestrator.embedded.kv_store import KVStore, SequenceKV
from orchestrator.embedded.scratch import Scratch
from orchestrator.embedded.weights import FloatArray, LayerWeights, ModelConfig, Weights
from orchestrator.embedded.workers import Piece, Workers

SLICE_TOKENS = 256
"""Bound of a slice."""

ATTENTION_COLUMNS = 128
"""Queries that attend at a time: scores that lie in the cache, and few scores of keys after the query."""

SAFE_SCORE = np.float32(60.0)
"""Scores within this bound need no shift before ``exp``: neither they nor their sum overflow or vanish."""

BLOCK_NUMBERS = 64 * 1024
"""Numbers of each array that element-wise steps take at a time: a few such arrays stay in the cache."""

FEW_SCORES = 64 * 64
"""Scores of a head up to which all heads attend in one piece."""

MANY_KEYS = 1024
"""Keys from which the scores of one head are all that the cache holds."""

PIECE_ROWS = 384
ROW_UNIT = 48
"""Bound of the rows of a product that a thread takes of a lone slice; a multiple of so many."""


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """``0…count-1`` in nearly equal ranges ``(first, end)``."""
    return list(itertools.pairwise(count * part // parts for part in range(parts + 1)))


def slices(count: int) -> list[tuple[int, int]]:
    """The slices of a chunk of ``count`` tokens: one, or an even number."""
    return cut(count, 1 if count <= SLICE_TOKENS else 2 * -(-count // (2 * SLICE_TOKENS)))


def one_by_one(pieces: list[Piece]) -> None:
    for piece in pieces:
        piece()


class _OfThread(threading.local):
    """What each thread has for itself."""

    def __init__(self) -> None:
        self.scratch = Scratch()


class _Slice:
    """Tokens ``start…end-1`` of a sequence on their way through the layers: the first of ``width`` columns.
    ``share`` computes pieces of work on it; ``alone``: they may run at the same time."""

    def __init__(
        self,
        x: FloatArray,
        start: int,
        count: int,
        products: Products,
        scratch: Scratch,
        workers: Workers | None,
    ) -> None:
        self.alone = workers is not None
        self.share = one_by_one if workers is None else workers.run
        self.x = x
        self.start = start
        self.count = count
        self.end = start + count
        self.width = x.shape[1]
        self.products = products
        self.scratch = scratch
        self.workers = workers
        self.turns: Turns
        self.queries: FloatArray
        """``(features, width)``, from the projection to the attention of a layer."""
        self.mixed: FloatArray
        """``(features, width)``, what attention gave."""

    def last(self) -> _Slice:
        """The last token by itself."""
        column = slice(self.count - 1, self.count)
        x = np.ascontiguousarray(self.x[:, column])
        alone = _Slice(x, self.end - 1, 1, BlasProducts(), self.scratch, self.workers)
        alone.queries = np.ascontiguousarray(self.queries[..., column])
        return alone

    def rows(self, matrix: FloatArray) -> list[tuple[int, int]]:
        """How the rows of a product are shared out."""
        count = len(matrix)
        if not self.alone:
            return [(0, count)]
        ranges = cut(-(-count // ROW_UNIT), -(-count // PIECE_ROWS))
        return [(first * ROW_UNIT, min(end * ROW_UNIT, count)) for first, end in ranges]

    def arranged(self, x: FloatArray) -> FloatArray:
        """Activations as ``products`` take them, until the next call."""
        return self.products.arranged(x, self.scratch)

    def product(self, name: str, matrix: FloatArray, arranged: FloatArray) -> tuple[FloatArray, list[Piece]]:
        """The product in the scratch memory of that name, once the pieces are computed."""
        out = self.scratch.take(name, len(matrix), self.width)
        pieces: list[Piece] = [
            functools.partial(self.products.multiply, matrix[first:end], arranged, out[first:end])
            for first, end in self.rows(matrix)
        ]
        return out, pieces


class ChunkPass:
    """One forward pass at a time over one chunk."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        store: KVStore,
        rotary: Rotary,
        products: Products,
        workers: Workers,
    ) -> None:
        self._config = config
        self._weights = weights
        self._store = store
        self._rotary = rotary
        self._products = products
        self._workers = workers
        self._scratch: list[Scratch] = []
        self._here = _OfThread()
        self._epsilon = np.float32(config.rms_norm_eps)
        self._per_feature = np.float32(1.0 / config.hidden_size)
        self._scale = np.float32(config.head_dim**-0.5)
        self._ones = np.ones((1, rotary.positions), dtype=np.float32)
        """Sums columns by a product."""
        count = ATTENTION_COLUMNS
        self._future = np.tril(np.full((count, count), -np.inf, dtype=np.float32), k=-1)

    def compute(
        self, tokens: Sequence[int], start: int, blocks: Sequence[int], *, ends: bool, hidden: bool
    ) -> FloatArray | None:
        """See ``Llama.prefill``."""
        end = start + len(tokens)
        stored = self._store.sequence(blocks, end)
        ids = np.asarray(tokens)
        work: list[_Slice] = []
        cuts = slices(len(tokens))
        workers = self._workers if len(cuts) == 1 else None
        for number, (first, until) in enumerate(cuts):
            if number == len(self._scratch):
                self._scratch.append(Scratch())
            count = until - first
            columns = self._products.columns
            x = np.zeros((self._config.hidden_size, -(-count // columns) * columns), dtype=np.float32)
            x[:, :count] = self._weights.embedding[ids[first:until]].T
            part = _Slice(x, start + first, count, self._products, self._scratch[number], workers)
            part.turns = self._rotary.columns(part.start, part.end, part.width)
            work.append(part)
        last = len(self._weights.layers) - 1
        self._workers.run([functools.partial(self._project, part, 0, stored) for part in work])
        for index in range(last):
            self._attend(work, index, stored)
            self._workers.run(
                [functools.partial(self._mix_and_project, part, index, stored) for part in work]
            )
        if ends:
            token = work[-1].last()
            self._attend([token], last, stored)
            self._mix(token, last)
            self._store.state(blocks, end)[:] = token.x[:, 0]
        if not hidden:
            return None
        self._attend(work, last, stored)
        self._workers.run([functools.partial(self._mix, part, last) for part in work])
        return np.concatenate([part.x[:, : part.count].T for part in work])

    def _mix_and_project(self, part: _Slice, index: int, stored: SequenceKV) -> None:
        """The rest of a layer, and the next one up to its keys and values."""
        self._mix(part, index)
        self._project(part, index + 1, stored)

    def _project(self, part: _Slice, index: int, stored: SequenceKV) -> None:
        """Queries, and the keys and values of the layer into the store."""
        config, layer = self._config, self._weights.layers[index]
        normed = part.arranged(self._norm(part, layer.input_norm))
        products = [
            part.product(name, matrix, normed)
            for name, matrix in zip("qkv", (layer.q, layer.k, layer.v), strict=True)
        ]
        part.share([piece for _, pieces in products for piece in pieces])
        queries, keys, values = (out.reshape(-1, config.head_dim, part.width) for out, _ in products)
        self._turn(queries, part)
        queries *= self._scale
        self._turn(keys, part)
        part.queries = queries
        keys, values = (x[:, :, : part.count].transpose(0, 2, 1) for x in (keys, values))
        stored.write(index, part.start, keys, values)

    def _turn(self, x: FloatArray, part: _Slice) -> None:
        self._rotary.turn_columns(x, part.turns, part.scratch.take("turned", 2, len(x), *part.turns[0].shape))

    def _mix(self, part: _Slice, index: int) -> None:
        """What attention found, and the layer's second half."""
        layer = self._weights.layers[index]
        added, pieces = part.product("sum", layer.o, part.arranged(part.mixed))
        part.share(pieces)
        part.x += added
        normed = part.arranged(self._norm(part, layer.post_norm))
        inner = part.scratch.take("inner", 2, len(layer.gate), part.width)
        part.share(
            [
                functools.partial(self._gate_and_up, part, layer, normed, inner, first, end)
                for first, end in part.rows(layer.gate)
            ]
        )
        added, pieces = part.product("sum", layer.down, part.arranged(inner[0]))
        part.share(pieces)
        part.x += added

    def _gate_and_up(
        self, part: _Slice, layer: LayerWeights, normed: FloatArray, inner: FloatArray, first: int, end: int
    ) -> None:
        """Rows ``first…end-1`` of the gated activations into ``inner[0]``."""
        gate, up = inner[:, first:end]
        part.products.multiply(layer.gate[first:end], normed, gate)
        part.products.multiply(layer.up[first:end], normed, up)
        step = max(1, BLOCK_NUMBERS // gate.shape[1])
        for start in range(0, len(gate), step):
            block = gate[start : start + step]
            swiglu(block, up[start : start + step], self._here.scratch.take("swiglu", *block.shape))

    def _attend(self, work: list[_Slice], index: int, stored: SequenceKV) -> None:
        """Attention of all slices, longest pieces first."""
        self._workers.run(
            [piece for part in reversed(work) for piece in self._attention(part, index, stored)]
        )

    def _attention(self, part: _Slice, index: int, stored: SequenceKV) -> list[Piece]:
        """``part.mixed``, once the pieces are computed."""
        config = self._config
        keys, values = stored.read(index, part.end)
        group = config.heads // config.kv_heads
        queries = part.queries.reshape(config.kv_heads, group, config.head_dim, part.width)
        mixed = part.scratch.take("mixed", *queries.shape)
        mixed[..., part.count :] = 0.0
        part.mixed = mixed.reshape(-1, part.width)
        # Fewer calls if there is little to compute, more pieces to share out if there is much.
        heads = config.kv_heads if part.width * part.end <= FEW_SCORES else 1
        queries_each = 1 if heads == 1 and (part.alone or part.end > MANY_KEYS) else group
        pieces: list[Piece] = []
        for head in range(0, config.kv_heads, heads):
            for first in range(0, group, queries_each):
                at = np.s_[head : head + heads, first : first + queries_each]
                near = keys[head : head + heads, None], values[head : head + heads, None]
                pieces.append(functools.partial(self._attend_heads, part, *near, queries[at], mixed[at]))
        return pieces

    def _attend_heads(
        self,
        part: _Slice,
        keys: FloatArray,
        values: FloatArray,
        queries: FloatArray,
        mixed: FloatArray,
    ) -> None:
        """Attention, few queries at a time: ``queries`` and ``mixed`` ``(kv_heads, heads, head_dim, width)``,
        ``keys`` and ``values`` ``(kv_heads, 1, known tokens, head_dim)``."""
        for first, end in cut(part.count, -(-part.count // ATTENTION_COLUMNS)):
            known = part.start + end
            scores = self._here.scratch.take("scores", *queries.shape[:2], known, end - first)
            np.matmul(keys[:, :, :known], queries[..., first:end], out=scores)
            self._exponentiate(scores)
            out = mixed[..., first:end]
            np.matmul(values[:, :, :known].swapaxes(-2, -1), scores, out=out)
            out /= np.matmul(self._ones[:, :known], scores)

    def _exponentiate(self, scores: FloatArray) -> None:
        """Weights ``exp(score)`` up to a factor for each column, in place; ``(…, keys, queries)``, the last
        key being that of the last query."""
        count = scores.shape[-1]
        recent = scores[..., -count:, :]
        recent += self._future[:count, :count]
        own = recent.diagonal(axis1=-2, axis2=-1)  # no query's largest score is less than that of its own key
        if not (scores.max() <= SAFE_SCORE and own.min() >= -SAFE_SCORE):
            scores -= scores.max(axis=-2, keepdims=True)
        np.exp(scores, out=scores)

    def _norm(self, part: _Slice, weight: FloatArray) -> FloatArray:
        """RMSNorm of every column."""
        normed = np.multiply(part.x, part.x, out=part.scratch.take("norm", *part.x.shape))
        scale = np.float32(1.0) / np.sqrt(np.add.reduce(normed, axis=0) * self._per_feature + self._epsilon)
        np.multiply(part.x, scale, out=normed)
        normed *= weight[:, None]
        return normed
