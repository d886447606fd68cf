"""Encoders behind one interface: ``tokenizers``, the reference, and ``fastokens``, tens of times faster.

The reference loads in a third of the time, so a process serves with it first and adopts the fast engine once
that is loaded and has given the same IDs for the probe texts (`parity`). Whatever the fast engine cannot
encode is encoded by the reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer

FAST_THREADS = "FASTOKENS_BPE_THREADS"
"""Environment variable of fastokens, read when it is loaded: threads that share one text."""
PANIC = "PanicException"
"""What a Rust extension raises for a bug of its own; it is no `Exception`."""


class FastEngineUnavailable(Exception):
    """The fast engine cannot be used; the message says why."""


class TokenEngine(Protocol):
    """Text to token IDs. Thread-safe; releases the interpreter lock while it encodes."""

    @property
    def name(self) -> str: ...

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Raises UnicodeError or TypeError for a lone surrogate."""
        ...


class ReferenceTokenizer(TokenEngine, Protocol):
    """What else is asked of the tokenizer that all IDs are measured by."""

    @property
    def specials(self) -> int:
        """Special tokens that are put around a text."""
        ...

    def encoded(
        self, text: str, *, add_special_tokens: bool, keep: int | None, offsets: bool
    ) -> tuple[list[int], list[tuple[int, int]] | None]:
        """IDs, and where in the text they stand if ``offsets`` are asked for and the tokenizer knows them.

        ``keep``: how many of the text's own last tokens stay, special ones not counted. Raises as `ids`.
        """
        ...

    def piece(self, token_id: int) -> str:
        """How the tokenizer itself writes the token; empty for an ID that it does not have."""
        ...


class ReferenceEngine:
    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.specials = tokenizer.num_special_tokens_to_add(False)

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encoded(
        self, text: str, *, add_special_tokens: bool, keep: int | None, offsets: bool
    ) -> tuple[list[int], list[tuple[int, int]] | None]:
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        cuts = keep is not None and add_special_tokens
        encoding = encode([text], add_special_tokens=add_special_tokens and not cuts)[0]
        if keep is not None and len(encoding.ids) > keep:
            encoding.truncate(keep, direction="left")
        if cuts:
            encoding = self._tokenizer.post_process(encoding, None, True)
        return encoding.ids, encoding.offsets if offsets else None

    def piece(self, token_id: int) -> str:
        return self._tokenizer.id_to_token(token_id) or ""


class FastEngine:
    name = "fastokens"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, tokenizer_file: Path, added: tuple[AddedToken, ...]) -> FastEngine:
        """``added``: tokens that the reference has beyond the file's, in the order in which it got them.

        Raises FastEngineUnavailable when the package is missing or cannot take this tokenizer.
        """
        # One text on several threads costs up to twice the CPU time: they spin while they wait for others.
        # Cores are used by several requests at once instead.
        os.environ.setdefault(FAST_THREADS, "1")
        try:
            import fastokens
        except ImportError as error:
            raise FastEngineUnavailable(f"fastokens cannot be imported: {error}") from error
        try:
            tokenizer = fastokens.Tokenizer.from_file(str(tokenizer_file))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            for token in added:
                tokenizer.add_tokens([token])
        except BaseException as error:
            _reraise_unless_fault(error)
            raise FastEngineUnavailable(f"fastokens cannot load {tokenizer_file}: {error}") from error
        return cls(tokenizer)

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids


class EngineSlot:
    """The engine in use: the reference, until `adopt` puts the fast one in its place.

    ``on_fault`` is told of each text that the fast engine failed on and the reference encoded.
    """

    def __init__(self, reference: TokenEngine) -> None:
        self._reference = reference
        self._current = reference
        self.on_fault: Callable[[BaseException], None] = lambda _: None

    @property
    def name(self) -> str:
        return self._current.name

    @property
    def reference(self) -> TokenEngine:
        return self._reference

    def adopt(self, engine: TokenEngine) -> None:
        self._current = engine

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        engine = self._current
        if engine is self._reference:
            return engine.ids(text, add_special_tokens=add_special_tokens)
        try:
            return engine.ids(text, add_special_tokens=add_special_tokens)
        except BaseException as error:
            _reraise_unless_fault(error)
            if not isinstance(error, UnicodeError):
                self.on_fault(error)
        return self._reference.ids(text, add_special_tokens=add_special_tokens)


def _reraise_unless_fault(error: BaseException) -> None:
    if not isinstance(error, Exception) and type(error).__name__ != PANIC:
        raise error
