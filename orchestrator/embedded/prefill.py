"""Prefill: the KV of one chunk of a prompt, on all threads.

Theory of operation. A chunk is cut into slices of consecutive tokens by its length alone, so that numbers do
not depend on the number of threads. A slice goes through a layer in one piece of work on one thread: its
products are large enough for BLAS to be efficient and small enough for its activations to stay in the cache.
Slices meet once a layer: when all keys and values of the layer are written, attention may read them.

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
from orchestrator.embedded.kv_store import KVStore, Place
from orchestrator.embedded.weights import FloatArray, ModelConfig, Weights
from orchestrator.embedded.workers import Workers

SLICE_TOKENS = 256
"""Bound of a slice."""

ATTENTION_COLUMNS = 128
"""Queries that attend at a time: scores that lie in the cache, and few scores of keys after the query."""

SAFE_SCORE = np.float32(60.0)
"""Scores within this bound need no shift before ``exp``: neither they nor their sum overflow or vanish."""

SHARED_FROM = 16
"""Tokens from which a chunk is cut into at least two slices."""


def slices(count: int) -> list[tuple[int, int]]:
    """Cut ``count`` tokens into an even number of nearly equal slices, or into one if they are few."""
    parts = 1 if count < SHARED_FROM else 2 * -(-count // (2 * SLICE_TOKENS))
    bounds = [count * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(bounds))


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
    """Tokens ``start…end-1`` of a sequence on their way through the layers."""

    def __init__(self, x: FloatArray, start: int, rotary: Rotary, scratch: Scratch) -> None:
        self.x = x
        self.start = start
        self.count = x.shape[1]
        self.end = start + self.count
        self.turns = rotary.columns(start, self.end)
        self.scratch = scratch
        self.queries = x  # replaced by the first projection


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
        self._scale = np.float32(config.head_dim**-0.5)
        self._ones = np.ones((1, rotary.positions), dtype=np.float32)
        """Sums columns by a product."""
        count = ATTENTION_COLUMNS
        self._future = np.tril(np.full((count, count), -np.inf, dtype=np.float32), k=-1)

    def compute(
        self, tokens: Sequence[int], start: int, blocks: Sequence[int], *, hidden: bool
    ) -> FloatArray | None:
        """See ``Llama.prefill``."""
        place = self._store.locate(blocks, start + len(tokens))
        ids = np.asarray(tokens)
        work = []
        for number, (first, end) in enumerate(slices(len(tokens))):
            if number == len(self._scratch):
                self._scratch.append(Scratch())
            x = np.ascontiguousarray(self._weights.embedding[ids[first:end]].T)
            work.append(_Slice(x, start + first, self._rotary, self._scratch[number]))
        last = len(self._weights.layers) - 1
        self._workers.run([functools.partial(self._project, part, 0, place) for part in work])
        for index in range(last):
            self._workers.run([functools.partial(self._layer, part, index, place) for part in work])
        if not hidden:
            return None
        self._workers.run([functools.partial(self._attend_and_mix, part, last, place) for part in work])
        return np.concatenate([part.x.T for part in work])

    def _layer(self, part: _Slice, index: int, place: Place) -> None:
        """The rest of a layer, and the next one up to its keys and values."""
        self._attend_and_mix(part, index, place)
        self._project(part, index + 1, place)

    def _project(self, part: _Slice, index: int, place: Place) -> None:
        """Queries, and the keys and values of the layer into the store."""
        config, layer = self._config, self._weights.layers[index]
        normed = self._norm(part, layer.input_norm)
        queries, keys, values = (
            np.matmul(matrix, normed, out=part.scratch.take(name, len(matrix), part.count)).reshape(
                -1, config.head_dim, part.count
            )
            for name, matrix in (("q", layer.q), ("k", layer.k), ("v", layer.v))
        )
        part.queries = self._rotary.turn_columns(queries, part.turns)
        part.queries *= self._scale
        keys = self._rotary.turn_columns(keys, part.turns)
        self._store.write(index, place, part.start, keys.transpose(0, 2, 1), values.transpose(0, 2, 1))

    def _attend_and_mix(self, part: _Slice, index: int, place: Place) -> None:
        layer, scratch, count = self._weights.layers[index], part.scratch, part.count
        mixed = self._attend(part, index, place)
        part.x += np.matmul(layer.o, mixed, out=scratch.take("sum", len(layer.o), count))
        normed = self._norm(part, layer.post_norm)
        gate = np.matmul(layer.gate, normed, out=scratch.take("gate", len(layer.gate), count))
        up = np.matmul(layer.up, normed, out=scratch.take("up", len(layer.up), count))
        inner = swiglu(gate, up, scratch.take("swiglu", *gate.shape))
        part.x += np.matmul(layer.down, inner, out=scratch.take("sum", len(layer.down), count))

    def _attend(self, part: _Slice, index: int, place: Place) -> FloatArray:
        """``(heads * head_dim, tokens)``; one key head and few queries at a time."""
        config, count = self._config, part.count
        keys, values = self._store.read(index, place, part.end)
        queries = part.queries.reshape(config.kv_heads, -1, config.head_dim, count)
        mixed = part.scratch.take("mixed", *queries.shape)
        for first in range(0, count, ATTENTION_COLUMNS):
            end = min(first + ATTENTION_COLUMNS, count)
            known = part.start + end
            scores = part.scratch.take("scores", queries.shape[1], known, end - first)
            ones = self._ones[:, :known]
            for head in range(config.kv_heads):
                np.matmul(keys[head, :known], queries[head, :, :, first:end], out=scores)
                self._exponentiate(scores)
                out = mixed[head, :, :, first:end]
                np.matmul(values[head, :known].T, scores, out=out)
                out /= np.matmul(ones, scores)
        return mixed.reshape(-1, count)

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
        scale = np.float32(1.0) / np.sqrt(normed.mean(axis=0) + np.float32(self._config.rms_norm_eps))
        np.multiply(part.x, scale, out=normed)
        normed *= weight[:, None]
        return normed
