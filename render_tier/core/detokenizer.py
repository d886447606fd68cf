"""Token pieces to text, character by character exact for any chunking.

Bytes are held back only while they are the beginning of a character (at most three); what cannot become one
is U+FFFD at once, and `finish` flushes what was left. A genuine U+FFFD in the output is a character like
any other. The prompt plays no part: nothing of it can be emitted, and no leading space is dropped.
"""

from __future__ import annotations

import codecs
from typing import Final

from render_tier.core.vocabulary import REPLACE_EACH_BYTE

_utf_8_decode: Final = codecs.utf_8_decode
MAX_PENDING: Final = 3
"""A UTF-8 character has at most four bytes, so at most three are the beginning of one."""


class Detokenizer:
    """``pending``: the bytes of an unfinished character."""

    __slots__ = ("_errors", "pending")

    def __init__(self, *, replace_each_byte: bool = False) -> None:
        self._errors = REPLACE_EACH_BYTE if replace_each_byte else "replace"
        self.pending = b""

    def feed(self, piece: str | bytes) -> str:
        """The characters that this token completes."""
        if type(piece) is str:
            if not self.pending:
                return piece
            return self.finish() + piece if piece else ""
        assert isinstance(piece, bytes)
        data = self.pending + piece
        text, used = _utf_8_decode(data, self._errors, False)
        self.pending = data[used:]
        return text

    def finish(self) -> str:
        """The text ends here: an unfinished character is invalid."""
        if not self.pending:
            return ""
        text, _used = _utf_8_decode(self.pending, self._errors, True)
        self.pending = b""
        return text
