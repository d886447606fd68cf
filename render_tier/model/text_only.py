"""An encoder that knows no special tokens: their spelling is text to it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from render_tier.model.engines import ReferenceEngine, TokenEngine
from render_tier.protocol.errors import BadRequest


def load_text_only(tokenizer_file: Path, added: tuple[AddedToken, ...]) -> ReferenceEngine:
    """The reference tokenizer once more (half a second, tens of megabytes), with special tokens switched off.
    Other added tokens are found as ever. ``added``: what the reference has beyond the file's."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for token in added:
        if token.special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    tokenizer.encode_special_tokens = True
    return ReferenceEngine(tokenizer)


class GuardedEngine:
    """``engine``, and ``text_only`` for each text in which it finds one of ``special_ids``."""

    def __init__(self, engine: TokenEngine, text_only: ReferenceEngine, special_ids: frozenset[int]) -> None:
        """``special_ids``: those that no text may become."""
        self._engine = engine
        self._text_only = text_only
        self._special_ids = special_ids

    @property
    def name(self) -> str:
        return self._engine.name

    def ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Never adds special tokens, and never gives one. Raises BadRequest for a text that cannot be written
        without, and what the engines raise."""
        ids = self._engine.ids(text, add_special_tokens=False)
        if not self._special_ids.isdisjoint(ids):
            ids = self._checked(self._text_only.ids(text, add_special_tokens=False))
        return ids

    def with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """As `ids`, and where in the text they stand."""
        ids, offsets = self._text_only.encoded(text, add_special_tokens=False, keep=None, offsets=True)
        return self._checked(ids), offsets or []

    def _checked(self, ids: list[int]) -> list[int]:
        if not self._special_ids.isdisjoint(ids):
            raise BadRequest("The request holds text that can only be written with special tokens")
        return ids
