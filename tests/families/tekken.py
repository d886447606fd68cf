"""Mistral's tekken vocabulary for tests: encoding of short texts, and the vocabulary the parser core reads.

The file has token bytes in the order of their ranks; the first IDs are special tokens. Version v13 is the
corpus's stand-in: the old special tokens at their ranks and the new ones from rank 20 on.
"""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex

from render_tier.core.vocabulary import Vocabulary

OLD_SPECIALS = (
    *(
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
    ),
    *(
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
    ),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
V13_SPECIALS = (
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
)


def specials_of(version: str) -> list[str]:
    """The named special tokens by rank."""
    if version != "v13":
        return list(OLD_SPECIALS)
    old = [token for token in OLD_SPECIALS if token not in V13_SPECIALS]
    return [*old, *(f"<SPECIAL_{rank}>" for rank in range(len(old), 20)), *V13_SPECIALS]


class Tekken:
    """``encode`` reads special tokens written as text."""

    def __init__(self, path: Path, version: str) -> None:
        model: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config = model["config"]
        named = specials_of(version)
        reserved: int = config["default_num_special_tokens"]
        ordinary = model["vocab"][: config["default_vocab_size"] - reserved]
        self.specials = {token: rank for rank, token in enumerate(named)}
        self.ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in ordinary}
        self.reserved = reserved
        self.words = regex.compile(config["pattern"])
        self.split = regex.compile("|".join(map(regex.escape, named)))
        self.vocabulary = self._vocabulary(named)

    def _vocabulary(self, named: list[str]) -> Vocabulary:
        alphabet = _alphabet()
        tokens: list[str | None] = [
            *named,
            *(f"<SPECIAL_{rank}>" for rank in range(len(named), self.reserved)),
            *([None] * len(self.ranks)),
        ]
        ids = {token: rank for rank, token in enumerate(tokens) if token is not None}
        for spelled, rank in self.ranks.items():
            token = "".join(alphabet[byte] for byte in spelled)
            tokens[self.reserved + rank] = token
            ids.setdefault(token, self.reserved + rank)
        special = frozenset(range(self.reserved))
        return Vocabulary(tokens, ids.get, special, byte_level=True, byte_fallback=False, space="")

    def encode(self, text: str) -> list[int]:
        ids, at = [], 0
        for found in self.split.finditer(text):
            ids += self._plain(text[at : found.start()])
            ids.append(self.specials[found[0]])
            at = found.end()
        return ids + self._plain(text[at:])

    def _plain(self, text: str) -> list[int]:
        return [token for word in self.words.findall(text) for token in self._merge(word.encode())]

    def _merge(self, word: bytes) -> list[int]:
        parts = [bytes([byte]) for byte in word]
        while len(parts) > 1:
            pairs = [self.ranks.get(a + b) for a, b in pairwise(parts)]
            best = min((rank for rank in pairs if rank is not None), default=None)
            if best is None:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.reserved + self.ranks[part] for part in parts]


def _alphabet() -> list[str]:
    """The characters by which byte-level vocabularies write the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    for extra, byte in enumerate(byte for byte in range(256) if byte not in table):
        table[byte] = chr(256 + extra)
    return [table[byte] for byte in range(256)]
