"""The Llama forward pass: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

Theory of operation. Disaggregated output must equal colocated output token for token, so every number must
depend on the sequence alone: never on what else runs, which engine computes it, on how many threads, or where
its blocks lie.

- A prompt is prefilled in chunks that start at multiples of a fixed size, one sequence at a time
  (``prefill``), by compiled steps or by numpy. What the last layer made of its last token, the prompt's
  *state*, stays with the KV and travels with it. The first output token is sampled from the state by the
  decode path, on every engine: a decode engine that pulled the KV makes exactly the call that a colocated
  engine makes.
- Decode projects all rows at once by products that keep rows apart bit for bit (``projection``); attention is
  computed per sequence.
- BLAS itself runs on one thread. Work is shared out in pieces whose shape does not depend on the number of
  threads (``workers``).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from orchestrator.embedded.backend import DecodeRow
from orchestrator.embedded.elementwise import Rotary, rms_norm, swiglu
from orchestrator.embedded.kv_store import KVLayout, KVStore, SequenceKV
from orchestrator.embedded.prefill import ChunkPass
from orchestrator.embedded.projection import WIDTHS, Projection, joined, padded, rows_are_independent
from orchestrator.embedded.steps import Steps
from orchestrator.embedded.weights import FloatArray, LayerWeights, ModelConfig, Weights
from orchestrator.embedded.workers import Piece, Workers

ATTENTION_PIECE_TOKENS = 512
"""KV length from which a sequence's attention is long enough to be worth a thread."""


class _LayerProjections:
    def __init__(self, layer: LayerWeights) -> None:
        self.qkv = Projection((layer.q, layer.k, layer.v))
        self.o = Projection((layer.o,))
        self.gate_up = Projection((layer.gate, layer.up))
        self.down = Projection((layer.down,))


class Llama:
    """Computes with mapped weights and a KV store; not thread-safe (one model thread owns it)."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        store: KVStore,
        max_positions: int,
        steps: Steps,
        workers: Workers,
    ) -> None:
        self.config = config
        self.store = store
        self._weights = weights
        self._workers = workers
        self._rotary = Rotary(config, max_positions)
        self._chunk = ChunkPass(config, weights, store, self._rotary, steps, workers)
        self._scale = np.float32(config.head_dim**-0.5)
        self._layers = [_LayerProjections(layer) for layer in weights.layers]
        self._head = Projection((weights.head,))
        shapes = [self._head]
        for layer in self._layers:
            shapes += (layer.qkv, layer.o, layer.gate_up, layer.down)
        self.rows_together = rows_are_independent(shapes)
        """Whether decode multiplies the rows of a batch together; see ``projection``."""

    @staticmethod
    def layout(config: ModelConfig, block_size: int) -> KVLayout:
        return KVLayout(config.layers, config.kv_heads, config.head_dim, block_size, config.hidden_size)

    def prefill(
        self,
        tokens: Sequence[int],
        start: int,
        blocks: Sequence[int],
        *,
        ends: bool = False,
        hidden: bool = False,
    ) -> FloatArray | None:
        """Compute the KV of ``tokens`` at positions ``start…``; earlier positions are already in ``blocks``.

        With ``ends``: also the prompt's state. With ``hidden``: what the last layer makes of all the tokens,
        ``(tokens, hidden)``, before the final norm.
        """
        return self._chunk.compute(tokens, start, blocks, ends=ends, hidden=hidden)

    def logits(self, hidden: FloatArray) -> FloatArray:
        """Logits ``(tokens, vocab)`` of prefilled positions."""
        normed = rms_norm(hidden, self._weights.norm, self.config.rms_norm_eps)
        return normed @ self._weights.head.T

    def decode(self, batch: Sequence[DecodeRow]) -> FloatArray:
        """One token of each sequence; logits ``(len(batch), vocab)``, each row as if it were alone."""
        most = WIDTHS[-1]
        if len(batch) > most:
            parts = [self.decode(batch[first : first + most]) for first in range(0, len(batch), most)]
            return np.concatenate(parts)
        count = len(batch)
        x = self._rows(count)
        for i, row in enumerate(batch):
            if row.token is None:
                x[i] = self.store.state(row.blocks, row.position + 1)
        computed = [i for i, row in enumerate(batch) if row.token is not None]
        if computed:
            x[computed] = self._through_layers([batch[i] for i in computed])
        normed = rms_norm(x, self._weights.norm, self.config.rms_norm_eps)
        return joined(self._apply(self._head, normed))[:count]

    def _rows(self, count: int) -> FloatArray:
        """Room for a batch of ``count`` rows."""
        width = padded(count) if self.rows_together else count
        return np.zeros((width, self.config.hidden_size), dtype=np.float32)

    def _through_layers(self, batch: Sequence[DecodeRow]) -> FloatArray:
        """What the last layer makes of each row's token, ``(len(batch), hidden)``."""
        config, count = self.config, len(batch)
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        x = self._rows(count)
        x[:count] = self._weights.embedding[np.asarray([row.token for row in batch])]
        mixed = np.zeros((len(x), q_width), dtype=np.float32)
        stored = [self.store.sequence(row.blocks, row.position + 1) for row in batch]
        turns = self._rotary.at(np.asarray([row.position for row in batch]))
        for index, layer in enumerate(self._weights.layers):
            projections = self._layers[index]
            normed = rms_norm(x, layer.input_norm, config.rms_norm_eps)
            qkv = joined(self._apply(projections.qkv, normed))[:count]
            turned = self._rotary.turn(
                qkv[:, : q_width + kv_width].reshape(count, -1, config.head_dim), turns
            )
            values = qkv[:, q_width + kv_width :].reshape(count, config.kv_heads, config.head_dim)
            queries, keys = turned[:, : config.heads] * self._scale, turned[:, config.heads :]
            pieces: list[Piece] = [
                functools.partial(
                    self._attend, index, row.position, stored[i], queries[i], keys[i], values[i], mixed[i]
                )
                for i, row in enumerate(batch)
            ]
            self._share_out(pieces, batch)
            x += joined(self._apply(projections.o, mixed))
            normed = rms_norm(x, layer.post_norm, config.rms_norm_eps)
            gate_up = self._apply(projections.gate_up, normed)
            gate, up = gate_up[: len(gate_up) // 2], gate_up[len(gate_up) // 2 :]
            x += joined(self._apply(projections.down, joined(swiglu(gate, up, np.empty_like(gate)))))
        return x[:count]

    def _apply(self, projection: Projection, x: FloatArray) -> FloatArray:
        return projection.apply(x, self._workers, together=self.rows_together)

    def _share_out(self, pieces: list[Piece], batch: Sequence[DecodeRow]) -> None:
        if max(row.position for row in batch) < ATTENTION_PIECE_TOKENS:
            for piece in pieces:
                piece()
        else:
            self._workers.run(pieces)

    def _attend(
        self,
        layer: int,
        position: int,
        stored: SequenceKV,
        queries: FloatArray,
        key: FloatArray,
        value: FloatArray,
        mixed: FloatArray,
    ) -> None:
        """Attention of one sequence: ``queries (heads, dim)`` at ``position`` over all KV up to it, which
        includes ``key`` and ``value (kv_heads, dim)``. Fills ``mixed (heads * dim)``."""
        config = self.config
        stored.write(layer, position, key[:, None], value[:, None])
        keys, values = stored.read(layer, position + 1)
        # Query heads that share a key head are the rows of one product.
        scores = np.matmul(queries.reshape(config.kv_heads, -1, config.head_dim), keys.transpose(0, 2, 1))
        scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        out = np.matmul(scores, values)
        out /= np.add.reduce(scores, axis=-1, keepdims=True)
        mixed[:] = out.reshape(-1)
