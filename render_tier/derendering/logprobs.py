"""Token strings for logprobs: the engine gives IDs, the client reads text.

A token that ends inside a character has no text of its own: its text is empty, and the token that completes
the character carries the whole of it (the coupled server's rule). Alternatives are spelled in the same
place.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

from render_tier.core.vocabulary import Vocabulary
from render_tier.protocol.generate import TokenLogprob
from render_tier.protocol.responses import CompletionLogprobs, LogprobOut, TopLogprobOut

_utf_8_decode: Final = codecs.utf_8_decode

MAX_CONTEXT: Final = 64
"""Bytes of unfinished tokens carried to the next; more is no character but a run of invalid bytes."""


class TokenSpeller:
    """``context``: bytes of the sampled tokens whose text waits for the rest of a character."""

    __slots__ = ("_vocabulary", "context")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.context = b""

    def spell(self, entries: Sequence[TokenLogprob]) -> list[LogprobOut]:
        """The entries of the next sampled tokens."""
        spelled = []
        for entry in entries:
            top = []
            for alternative in entry.top_logprobs:
                text, raw, _rest = self._token(alternative.token_id)
                top.append(TopLogprobOut(text, alternative.logprob, raw))
            text, raw, self.context = self._token(entry.token_id)
            spelled.append(LogprobOut(text, entry.logprob, raw, top))
        return spelled

    def resume(self, token_ids: Sequence[int]) -> None:
        """Continue after these sampled tokens."""
        for token_id in token_ids:
            _text, _raw, self.context = self._token(token_id)

    def _token(self, token_id: int) -> tuple[str, list[int] | None, bytes]:
        """(text, bytes, context for the next token)."""
        piece = self._vocabulary.pieces[token_id]
        if isinstance(piece, str):
            return piece, list(piece.encode()) if piece else None, b""
        data = self.context + piece
        text, used = _utf_8_decode(data, "replace", False)
        if used < len(data):
            if len(data) <= MAX_CONTEXT:
                return "", [], data
            text, used = _utf_8_decode(data, "replace", True)
        return text, list(text.encode()), b""


def completion_logprobs(entries: Sequence[LogprobOut], offset: int) -> tuple[CompletionLogprobs, int]:
    """The completions form, and the offset after the last token."""
    lists = CompletionLogprobs([], [], [], [])
    for entry in entries:
        lists.text_offset.append(offset)
        lists.tokens.append(entry.token)
        lists.token_logprobs.append(entry.logprob)
        lists.top_logprobs.append({top.token: top.logprob for top in entry.top_logprobs} or None)
        offset += len(entry.token)
    return lists, offset
