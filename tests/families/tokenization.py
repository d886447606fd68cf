"""The corpus's tokenizers, stand-ins included: text to token IDs, and the vocabulary the parser core reads.

A stand-in is a real tokenizer with the family's markers added as single non-special tokens, as the corpus's
README describes; the rest of its vocabulary is not the model's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer

from render_tier.core.vocabulary import Vocabulary, build_vocabulary
from tests.conftest import MODELS


@dataclass(frozen=True, eq=False)
class CorpusTokenizer:
    """A tokenizer with its vocabulary. ``encode`` reads special tokens and markers written as text."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def tokenizer_of(case: dict[str, Any]) -> CorpusTokenizer:
    """The tokenizer of a corpus case or of `GeneratedOutput.case`."""
    standin = case.get("standin_tokenizer")
    return load(standin["base"], tuple(standin["added"])) if standin else load(case["tokenizer"], ())


@cache
def load(base: str, added: tuple[str, ...]) -> CorpusTokenizer:
    path = MODELS / base / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    known = tokenizer.get_vocab()
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in added if t not in known])
    return CorpusTokenizer(tokenizer, build_vocabulary(json.loads(tokenizer.to_str())))
