"""The tokenizer that a model directory is served with: tokenizer.json, or a file of Mistral's format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken

from render_tier.core.vocabulary import Vocabulary, build_vocabulary
from render_tier.model.engines import ReferenceEngine, ReferenceTokenizer
from render_tier.model.mistral_tokenizer import MistralTokenizer, tokenizer_file
from render_tier.model.tokenizer import load_tokenizer

TokenizerMode = Literal["auto", "hf", "mistral"]


@dataclass(frozen=True)
class ServedTokenizer:
    """A tokenizer of either kind, with what `ModelAssets` tells of it."""

    reference: ReferenceTokenizer
    mistral: MistralTokenizer | None
    vocabulary: Vocabulary
    data: dict[str, Any]
    added: tuple[AddedToken, ...]
    special_tokens: dict[str, str | list[str]]
    longest: int
    eos_id: int | None
    raw: bytes


def load_served_tokenizer(
    directory: Path, tokenizer_config: dict[str, Any], mode: TokenizerMode
) -> ServedTokenizer:
    """Raises ModelLoadError when the directory has none that can be used."""
    file = None if mode == "hf" else tokenizer_file(directory, demanded=mode == "mistral")
    if file is not None:
        mistral = MistralTokenizer.load(file)
        return ServedTokenizer(
            reference=mistral,
            mistral=mistral,
            vocabulary=mistral.vocabulary(),
            data={"added_tokens": []},
            added=(),
            special_tokens={},
            longest=mistral.longest_piece(),
            eos_id=mistral.eos_id,
            raw=mistral.raw,
        )
    loaded = load_tokenizer(directory, tokenizer_config)
    eos = loaded.special_tokens.get("eos_token")
    return ServedTokenizer(
        reference=ReferenceEngine(loaded.encoder),
        mistral=None,
        vocabulary=build_vocabulary(loaded.data, loaded.encoder.token_to_id),
        data={name: part for name, part in loaded.data.items() if name != "model"},
        added=loaded.added,
        special_tokens=loaded.special_tokens,
        longest=_longest_token(loaded.data),
        eos_id=loaded.encoder.token_to_id(eos) if isinstance(eos, str) else None,
        raw=loaded.raw,
    )


def _longest_token(tokenizer_json: dict[str, Any]) -> int:
    vocab = tokenizer_json["model"]["vocab"]
    texts = vocab if isinstance(vocab, dict) else [entry[0] for entry in vocab]
    added = (entry["content"] for entry in tokenizer_json["added_tokens"])
    return max(max(map(len, texts), default=1), max(map(len, added), default=1))
