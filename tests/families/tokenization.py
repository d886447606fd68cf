"""The corpus's tokenizers, stand-ins included: text to token IDs, and the vocabulary the parser core reads.

A stand-in is a real tokenizer with the family's markers added as single non-special tokens, as the corpus's
README describes; the rest of its vocabulary is not the model's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer

from render_tier.core.vocabulary import Vocabulary, build_vocabulary
from tests.conftest import MODELS
from tests.families.tekken import Tekken


@dataclass(frozen=True, eq=False)
class CorpusTokenizer:
    """A tokenizer with its vocabulary. ``encode`` reads special tokens and markers written as text."""

    encode: Callable[[str], list[int]]
    vocabulary: Vocabulary


def tokenizer_of(case: dict[str, Any]) -> CorpusTokenizer:
    """The tokenizer of a corpus case or of `GeneratedOutput.case`."""
    standin = case.get("standin_tokenizer")
    return load(standin["base"], tuple(standin["added"])) if standin else load(case["tokenizer"], ())


@cache
def load(base: str, added: tuple[str, ...]) -> CorpusTokenizer:
    if base.startswith("tekken"):
        tekken = Tekken(MODELS / "tekken_240911" / "tekken.json", "v13" if base == "tekken_v13" else "v3")
        return CorpusTokenizer(tekken.encode, tekken.vocabulary)
    tokenizer = Tokenizer.from_file(str(MODELS / base / "tokenizer.json"))
    new = [text for text in added if tokenizer.token_to_id(text) is None]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in new])
    data = _base(base)
    entries = [{"id": tokenizer.token_to_id(text), "content": text, "special": False} for text in new]
    vocabulary = build_vocabulary({**data, "added_tokens": [*data["added_tokens"], *entries]})

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return CorpusTokenizer(encode, vocabulary)


@cache
def _base(name: str) -> dict[str, Any]:
    """A tokenizer's JSON without its merges, which a vocabulary does not need and which take most of the
    memory: parsed once, as dozens of stand-ins are made of a few."""
    data: dict[str, Any] = json.loads((MODELS / name / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"].pop("merges", None)
    return data
