"""How many positions a model has, derived from its configuration as vLLM derives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from render_tier.model.files import ModelLoadError

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
SELF_SCALED_ROPE = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Rope types whose ``max_position_embeddings`` already includes the scaling factor."""
LARGEST_SANE_LENGTH = 1 << 40
"""transformers writes 1e30 for "unknown" into tokenizer_config.json."""
FALLBACK_LENGTH = 2048
"""vLLM's value for a config.json that names no length."""


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a (possibly multimodal) config.json."""
    for key in ("text_config", "llm_config", "language_config"):
        nested = config.get(key)
        if isinstance(nested, dict):
            return nested
    return config


def resolve_max_model_len(
    config: dict[str, Any], tokenizer_config: dict[str, Any], requested: int | None
) -> int:
    """Positions a request may use, prompt and output together.

    ``requested`` (``--max-model-len``) may lower the derived length but not raise it. Raises ModelLoadError
    for that, and when no file says a length and none was requested.
    """
    derived = _derived_length(config, tokenizer_config)
    if requested is None:
        if derived is None:
            if config:
                return FALLBACK_LENGTH
            raise ModelLoadError(
                "no config.json and no usable model_max_length in tokenizer_config.json: give --max-model-len"
            )
        return derived
    if requested < 1:
        raise ModelLoadError(f"--max-model-len must be at least 1, got {requested}")
    if derived is not None and requested > derived:
        own_limit = config.get("model_max_length")
        if not isinstance(own_limit, int) or requested > own_limit:
            raise ModelLoadError(
                f"--max-model-len {requested} is greater than the {derived} positions that the model's "
                "configuration gives"
            )
    return requested


def _derived_length(config: dict[str, Any], tokenizer_config: dict[str, Any]) -> int | None:
    text = text_config(config)
    named = [text[key] for key in LENGTH_KEYS if _is_length(text.get(key))]
    length = (
        text["model_max_length"] if _is_length(text.get("model_max_length")) else min(named, default=None)
    )
    limit = tokenizer_config.get("model_max_length")
    if _is_length(limit) and (length is None or limit < length):
        length = limit
    if length is None:
        return None
    ropes = list(_rope_parameters(text))
    if "gemma3" not in str(config.get("model_type", "")):
        factor = 1.0
        for rope in ropes:
            if _rope_type(rope) not in SELF_SCALED_ROPE:
                factor = rope.get("factor") or factor
        length = length * factor
    if any(_rope_type(rope) == "longrope" for rope in ropes):
        length = text.get("original_max_position_embeddings") or length
    return int(length)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST_SANE_LENGTH


def _rope_parameters(text: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("rope_parameters", "rope_scaling"):
        rope = text.get(key)
        if not isinstance(rope, dict):
            continue
        nested = [value for value in rope.values() if isinstance(value, dict)]
        yield from nested or [rope]
        return


def _rope_type(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))
