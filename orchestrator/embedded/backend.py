"""What the engine needs of whatever produces tokens: a model, or a script that plays one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.embedded.kv_store import KVStore
from orchestrator.embedded.sampler import Ending, RankedToken, SampledToken, SamplingSettings

PromptLogprobs = list[tuple[RankedToken, ...]]


@dataclass(frozen=True)
class Decoded:
    """One sampled token. ``ending`` ends the sequence for a reason of the backend's own; ``delay`` is how
    many seconds from now the next token of the sequence may be computed at the earliest."""

    sampled: SampledToken
    ending: Ending | None = None
    delay: float = 0.0


class SequenceSource(Protocol):
    """Backend state of one output sequence. ``delay``: least seconds from arrival to its first token."""

    delay: float


@dataclass(frozen=True)
class DecodeRow:
    """One sequence in a decode step: ``token`` is computed at ``position``; its KV goes into ``blocks``.
    Without ``token`` the prompt ends at ``position`` and is there already, with its state."""

    token: int | None
    position: int
    blocks: Sequence[int]


class Backend(Protocol):
    """``open_sequence`` may be called on any thread; ``warm_up`` before the model thread starts; the rest is
    called on the model thread only. ``arithmetic``: text that is equal when two engines compute the same bits
    from the same weights."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    fingerprint: str
    arithmetic: str
    store: KVStore

    def warm_up(self) -> None:
        """Do what would make the first requests slow; nothing is in any KV block yet."""

    def open_sequence(self, prompt: Sequence[int], settings: SamplingSettings, index: int) -> SequenceSource:
        """Raises ApiError if the backend cannot answer this request."""

    def prefill(
        self, prompt: Sequence[int], start: int, end: int, blocks: Sequence[int], logprobs: int | None
    ) -> PromptLogprobs:
        """Compute the KV of ``prompt[start:end]``, and the prompt's state if it ends there. With
        ``logprobs``: those of ``prompt[start+1:end+1]``."""

    def decode(self, rows: Sequence[tuple[DecodeRow, SequenceSource]]) -> list[Decoded]: ...

    def accept_loaded(self, prompt: Sequence[int], blocks: Sequence[int]) -> bool:
        """Whether KV that came from another engine is that of ``prompt``, as far as the backend can tell."""
