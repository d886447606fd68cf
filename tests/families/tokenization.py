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
    known = tokenizer.get_vocab()
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in added if t not in known])

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return CorpusTokenizer(encode, build_vocabulary(json.loads(tokenizer.to_str())))
