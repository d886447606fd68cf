"""The vocabulary of a real tokenizer, shared by the core's tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from render_tier.core.formats import PLAIN, reasoning_format, tool_format
from render_tier.core.grammar import Grammar
from render_tier.core.vocabulary import Vocabulary, build_vocabulary


@pytest.fixture(scope="session")
def tokenizer(qwen3_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))


@pytest.fixture(scope="session")
def vocabulary(qwen3_dir: Path) -> Vocabulary:
    return build_vocabulary(json.loads((qwen3_dir / "tokenizer.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def grammars(vocabulary: Vocabulary) -> list[Grammar]:
    qwen3, hermes = reasoning_format("qwen3"), tool_format("hermes")
    pairs = [(qwen3, hermes), (None, hermes), (qwen3, PLAIN), (None, PLAIN)]
    return [Grammar(reasoning, tool, vocabulary) for reasoning, tool in pairs]
