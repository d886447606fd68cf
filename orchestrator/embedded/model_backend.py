"""The backend that computes: a Llama model with sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from threadpoolctl import ThreadpoolController

from orchestrator.embedded.backend import Decoded, DecodeRow, PromptLogprobs, SequenceSource
from orchestrator.embedded.kv_store import KVStore
from orchestrator.embedded.llama import Llama
from orchestrator.embedded.sampler import SamplingSettings, SequenceSampler, log_softmax, rank_tokens
from orchestrator.embedded.weights import eos_token_ids, fingerprint, load_config, load_weights


class ModelBackend:
    """Greedy and sampled generation from a model directory.

    BLAS uses ``threads`` threads in prefill and one in decode, whose many small products cost more to share
    out than to compute. Both are set for the whole process: results must not depend on what was set before.
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
        self._blas = ThreadpoolController()
        self._blas.limit(limits=1, user_api="blas")
        self._threads = threads
        config = load_config(directory)
        self.vocab_size = config.vocab_size
        self.eos_token_ids = eos_token_ids(directory)
        self.max_model_len = max_model_len or config.max_position_embeddings
        self.fingerprint = fingerprint(directory)
        self.store = KVStore(Llama.layout(config, block_size), blocks)
        self._model = Llama(config, load_weights(directory, config), self.store, self.max_model_len)

    def open_sequence(self, prompt: Sequence[int], settings: SamplingSettings, index: int) -> SequenceSource:
        return SequenceSampler(settings, prompt, index, self.vocab_size)

    def prefill(
        self, prompt: Sequence[int], start: int, end: int, blocks: Sequence[int], logprobs: int | None
    ) -> PromptLogprobs:
        with self._blas.limit(limits=self._threads, user_api="blas"):
            hidden = self._model.prefill(prompt[start:end], start, blocks)
            if logprobs is None:
                return []
            rows = log_softmax(self._model.logits(hidden))
        return [
            rank_tokens(row, token, logprobs)
            for row, token in zip(rows, prompt[start + 1 : end + 1], strict=True)
        ]

    def decode(self, rows: Sequence[tuple[DecodeRow, SequenceSource]]) -> list[Decoded]:
        logits = self._model.decode([row for row, _ in rows])
        decoded = []
        for (_, source), row_logits in zip(rows, logits, strict=True):
            assert isinstance(source, SequenceSampler)
            decoded.append(Decoded(source.sample(row_logits)))
        return decoded

    def accept_loaded(self, prompt: Sequence[int], blocks: Sequence[int]) -> bool:
        return True
