"""The backend that computes: a Llama model with sampling."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import ThreadpoolController

from orchestrator.embedded.arithmetic import best_steps
from orchestrator.embedded.backend import Decoded, DecodeRow, PromptLogprobs, SequenceSource
from orchestrator.embedded.kv_store import KVStore
from orchestrator.embedded.llama import Llama
from orchestrator.embedded.projection import WIDTHS
from orchestrator.embedded.sampler import SamplingSettings, SequenceSampler, log_softmax, rank_tokens
from orchestrator.embedded.weights import eos_token_ids, fingerprint, load_config, load_weights
from orchestrator.embedded.workers import Workers

log = logging.getLogger(__name__)

WARM_TOKENS: Final = 63
"""Prompt of the warm-up."""


def describe_arithmetic(blas: ThreadpoolController) -> str:
    """What decides the bits of a sum or an exponential: libraries, and the kernels that they chose for the
    CPU at hand."""
    kernels = [
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}"
        for library in blas.info()
    ]
    chosen = np.lib.introspect.opt_func_info(func_name="^exp$", signature="float32")
    targets = [target["current"] for function in chosen.values() for target in function.values()]
    return f"numpy {np.__version__} {' '.join(targets)}; {', '.join(kernels)}"


class ModelBackend:
    """Greedy and sampled generation from a model directory, on ``threads`` threads.

    BLAS is limited to one thread, for the whole process: the engine's own threads call it side by side.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_model_len: int | None,
        block_size: int,
        blocks: int,
        threads: int,
    ) -> None:
        blas = ThreadpoolController().select(user_api="blas")
        blas.limit(limits=1)
        config = load_config(directory)
        self.vocab_size = config.vocab_size
        self.eos_token_ids = eos_token_ids(directory)
        self.max_model_len = max_model_len or config.max_position_embeddings
        self.fingerprint = fingerprint(directory)
        self.store = KVStore(Llama.layout(config, block_size), blocks)
        steps = best_steps()
        weights = load_weights(directory, config)
        self._model = Llama(config, weights, self.store, self.max_model_len, steps, Workers(threads))
        rows = "together" if self._model.rows_together else "apart"
        self.arithmetic = f"{describe_arithmetic(blas)}; rows {rows}; {steps.describe}"
        log.info("computes on %d threads with %s", threads, self.arithmetic)

    def open_sequence(self, prompt: Sequence[int], settings: SamplingSettings, index: int) -> SequenceSource:
        return SequenceSampler(settings, prompt, index, self.vocab_size)

    def prefill(
        self, prompt: Sequence[int], start: int, end: int, blocks: Sequence[int], logprobs: int | None
    ) -> PromptLogprobs:
        hidden = self._model.prefill(
            prompt[start:end], start, blocks, ends=end == len(prompt), hidden=logprobs is not None
        )
        if logprobs is None or hidden is None:
            return []
        known = prompt[start + 1 : end + 1]
        rows = log_softmax(self._model.logits(hidden[: len(known)]))
        return [rank_tokens(row, token, logprobs) for row, token in zip(rows, known, strict=True)]

    def decode(self, rows: Sequence[tuple[DecodeRow, SequenceSource]]) -> list[Decoded]:
        logits = self._model.decode([row for row, _ in rows])
        decoded = []
        for (_, source), row_logits in zip(rows, logits, strict=True):
            assert isinstance(source, SequenceSampler)
            decoded.append(Decoded(source.sample(row_logits)))
        return decoded

    def warm_up(self) -> None:
        """Map the weights' pages, make the threads' buffers, load every kernel, take memory for a few blocks:
        a short prompt and one decode step of every width."""
        size = self.store.layout.block_size
        length = min(WARM_TOKENS, self.max_model_len - 1, self.store.blocks * size - 1)
        blocks = tuple(range(length // size + 1))
        self._model.prefill([0] * length, 0, blocks, ends=True)
        for width in WIDTHS:
            self._model.decode([DecodeRow(0, length, blocks)] * width)

    def accept_loaded(self, prompt: Sequence[int], blocks: Sequence[int]) -> bool:
        return True
