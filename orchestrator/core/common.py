"""What every engine that may get a request can take, so that none is sent what it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.capabilities import Facts


@dataclass(frozen=True, slots=True)
class Common:
    """None: not known of any engine."""

    vocab_size: int | None = None
    """Prompt IDs must be below it."""
    max_model_len: int | None = None
    """Prompt and output together."""
    structured_outputs: bool | None = None


def common(prefill: Iterable[Facts], decode: Iterable[Facts]) -> Common:
    """Of the engines that are let in. Structured outputs are decode's alone."""
    decoders = list(decode)
    engines = [*prefill, *decoders]
    vocabularies = [facts.vocab_size for facts in engines if facts.vocab_size is not None]
    windows = [facts.max_model_len for facts in engines if facts.max_model_len is not None]
    can = [facts.structured_outputs for facts in decoders if facts.structured_outputs is not None]
    return Common(min(vocabularies, default=None), min(windows, default=None), all(can) if can else None)
