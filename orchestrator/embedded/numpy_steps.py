"""The steps of prefill by numpy and its BLAS. All columns of a slice are one group."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import numpy as np

from orchestrator.embedded.elementwise import Turns, swiglu, turn_columns
from orchestrator.embedded.kv_store import SequenceKV
from orchestrator.embedded.scratch import Scratch
from orchestrator.embedded.steps import Phase, Piece, Rows
from orchestrator.embedded.weights import FloatArray
from orchestrator.embedded.workers import Workers

SAFE_SCORE = np.float32(60.0)
"""Scores within this bound need no shift before ``exp``: neither they nor their sum overflow or vanish."""

BLOCK_NUMBERS = 64 * 1024
"""Numbers of each array that element-wise steps take at a time: a few such arrays stay in the cache."""

COLUMNS = 8
"""Columns come in multiples of so many: an odd number makes OpenBLAS a sixth slower."""

QUERIES = 128
"""Tokens that attend at a time: scores that lie in the cache, and few scores of keys after the query."""

Step = Callable[[], None]


class _OfThread(threading.local):
    """What each thread has for itself."""

    def __init__(self) -> None:
        self.scratch = Scratch()


class NumpySteps:
    """See ``Steps``."""

    describe = "prefill by BLAS"
    queries = QUERIES

    def __init__(self) -> None:
        self._here = _OfThread()
        self._future = np.tril(np.full((QUERIES, QUERIES), -np.inf, dtype=np.float32), k=-1)

    def stored(self, sequence: SequenceKV) -> SequenceKV:
        return sequence

    def lanes(self, tokens: int) -> int:
        return -(-tokens // COLUMNS) * COLUMNS

    def run(self, phases: Sequence[Phase], workers: Workers) -> None:
        for phase in phases:
            workers.run([functools.partial(_carry_out, piece) for piece in phase])

    def multiply(
        self, matrix: FloatArray, x: FloatArray, out: FloatArray, rows: Rows, *, adding: bool = False
    ) -> Step:
        matrix, out = matrix[slice(*rows)], out[:, slice(*rows)]
        if not adding:
            return functools.partial(np.matmul, matrix, x, out=out)

        def step() -> None:
            product = np.matmul(matrix, x, out=self._here.scratch.take("product", *out.shape))
            np.add(out, product, out=out)

        return step

    def normalize(self, x: FloatArray, weight: FloatArray, epsilon: float, out: FloatArray) -> Step:
        def step() -> None:
            np.multiply(x, x, out=out)
            mean = np.add.reduce(out, axis=1, keepdims=True) * np.float32(1.0 / x.shape[1])
            np.multiply(x, np.float32(1.0) / np.sqrt(mean + np.float32(epsilon)), out=out)
            np.multiply(out, weight[:, None], out=out)

        return step

    def turn(self, x: FloatArray, turns: Turns, scale: float) -> Step:
        groups, heads, dim, lanes = x.shape

        def step() -> None:
            turn_columns(x, turns, self._here.scratch.take("turned", 2, groups, heads, dim // 2, lanes))
            np.multiply(x, np.float32(scale), out=x)

        return step

    def gate(self, gate: FloatArray, up: FloatArray, rows: Rows) -> Step:
        def step() -> None:
            height = max(1, BLOCK_NUMBERS // gate.shape[2])
            for first in range(*rows, height):
                block = np.s_[0, first : min(first + height, rows[1])]
                swiglu(gate[block], up[block], self._here.scratch.take("gate", *gate[block].shape))

        return step

    def keep(
        self, keys: FloatArray, values: FloatArray, stored: SequenceKV, layer: int, tokens: range
    ) -> list[Step]:
        def step() -> None:
            rows = (x[0, :, :, : len(tokens)].swapaxes(1, 2) for x in (keys, values))
            stored.write(layer, tokens.start, *rows)

        return [step]

    def attend(
        self,
        queries: FloatArray,
        stored: SequenceKV,
        layer: int,
        head: int,
        mixed: FloatArray,
        position: int,
        tokens: range,
    ) -> Step:
        known = position + tokens.stop

        def step() -> None:
            keys, values = stored.read(layer, known)
            scores = self._here.scratch.take("scores", queries.shape[2], known, len(tokens))
            np.matmul(keys[head], queries[0, head, ..., tokens.start : tokens.stop], out=scores)
            self._exponentiate(scores)
            out = mixed[0, head, ..., tokens.start : tokens.stop]
            np.matmul(values[head].T, scores, out=out)
            np.divide(out, np.matmul(np.ones((1, known), dtype=np.float32), scores), out=out)
            if tokens.stop + COLUMNS > mixed.shape[-1]:
                mixed[0, head, ..., tokens.stop :] = 0.0

        return step

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


def _carry_out(piece: Piece) -> None:
    for step in piece:
        step()
