"""What each token ID spells: a byte table read from a tokenizer's own JSON, without the tokenizer.

Three ways of spelling exist among served models, told apart by the ``decoder`` of ``tokenizer.json``:

- byte-level BPE (GPT-2's map from bytes to printable characters): Qwen, Llama 3, DeepSeek, gpt-oss, SmolLM;
- SentencePiece pieces, ``▁`` for a space and ``<0xNN>`` for a byte: Gemma, Llama 2, Mistral;
- Metaspace, ``▁`` for a space.

Mistral's own files are read by its library, which tells the bytes or pieces (`model/mistral_tokenizer.py`).

Decoders that drop a leading space at the start of a *text* (``Strip``, ``Metaspace`` with prepending) do not
apply: a model's output continues a prompt, so its first space is real.
"""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

_BYTE_FALLBACK: Final = re.compile(rb"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's map, character to byte: printable Latin-1 stands for itself, the rest is moved to U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + offset): byte for offset, byte in enumerate(rest)})
    return alphabet


_ALPHABET: Final = _byte_level_alphabet()


class _Entries:
    """A vocabulary's entries, by ID, laid end to end: as texts of their own they would take ten times as much
    memory. Missing ones are empty."""

    def __init__(self, tokens: Iterable[str | bytes | None]) -> None:
        entries = [token.encode() if isinstance(token, str) else token or b"" for token in tokens]
        self._joined = b"".join(entries)
        self._bounds = array("I", accumulate(map(len, entries), initial=0))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, token_id: int) -> bytes:
        return self._joined[self._bounds[token_id] : self._bounds[token_id + 1]]


class _Pieces(dict[int, str | bytes]):
    """Token ID to its text, or to its bytes when they are not whole UTF-8 characters; filled when first
    asked."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary

    def __missing__(self, token_id: int) -> str | bytes:
        raw = self._vocabulary.token_bytes(token_id)
        try:
            piece: str | bytes = raw.decode()
        except UnicodeDecodeError:
            piece = raw
        if 0 <= token_id < self._vocabulary.size:
            # IDs outside the table spell nothing and are not remembered: the cache cannot outgrow the table.
            self[token_id] = piece
        return piece


class Vocabulary:
    """Token ID to bytes. Immutable but for a cache of at most one entry per ID; safe to share over
    threads."""

    def __init__(
        self,
        tokens: Iterable[str | bytes | None],
        find: Callable[[str], int | None],
        special_ids: frozenset[int],
        *,
        byte_level: bool,
        byte_fallback: bool,
        space: str,
    ) -> None:
        """``find``: the ID of an entry, None for what is none."""
        self._entries = _Entries(tokens)
        self._find = find
        self._byte_level = byte_level
        self._space = space.encode()
        self.size: Final = len(self._entries)
        """One more than the highest token ID of the tokenizer (a model's embedding may be larger)."""
        self.special_ids: Final = special_ids
        self.byte_fallback: Final = byte_fallback
        """Invalid UTF-8 becomes one U+FFFD per byte token, not one per maximal wrong sequence."""
        self.pieces: Final[Mapping[int, str | bytes]] = _Pieces(self)
        """Token ID to text, or to bytes when the token does not consist of whole characters."""

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, special={len(self.special_ids)})"

    def token_id(self, text: str) -> int | None:
        """The ID of the single token whose vocabulary entry is ``text`` (markers such as ``<think>``)."""
        try:
            return self._find(text)
        except UnicodeEncodeError:  # a lone surrogate, which no entry has
            return None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token spells; empty for an ID that the tokenizer does not have."""
        if not 0 <= token_id < self.size:
            return b""
        entry = self._entries[token_id]
        if self._byte_level:
            try:
                return bytes([_ALPHABET[character] for character in entry.decode()])
            except KeyError:  # an added token with characters outside the alphabet stands for itself
                return entry
        if self.byte_fallback and (match := _BYTE_FALLBACK.match(entry)):
            return bytes([int(match[1], 16)])
        return entry.replace(self._space, b" ") if self._space else entry

    def text(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of a whole sequence, as the tokenizer's own decode gives it."""
        special = self.special_ids if skip_special_tokens else frozenset[int]()
        raw = b"".join([self.token_bytes(token_id) for token_id in token_ids if token_id not in special])
        return raw.decode(errors=REPLACE_EACH_BYTE if self.byte_fallback else "replace")


def build_vocabulary(
    tokenizer_json: Mapping[str, Any], find: Callable[[str], int | None] | None = None
) -> Vocabulary:
    """Read the table from a parsed ``tokenizer.json``. ``find``: the tokenizer's own look-up of IDs by text,
    which saves one here. Raises ValueError for a tokenizer it cannot spell."""
    model = tokenizer_json.get("model") or {}
    entries = model.get("vocab")
    if isinstance(entries, dict):
        ids: dict[str, int] = dict(entries)
    elif isinstance(entries, list):  # Unigram: [[piece, score], ...]
        ids = {piece: index for index, (piece, _score) in enumerate(entries)}
    else:
        raise ValueError("tokenizer.json has no model.vocab")
    special: set[int] = set()
    for added in tokenizer_json.get("added_tokens") or ():
        ids[added["content"]] = added["id"]
        if added.get("special"):
            special.add(added["id"])
    tokens: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    for added in tokenizer_json.get("added_tokens") or ():
        tokens[added["id"]] = added["content"]
    kinds = list(_decoders(tokenizer_json.get("decoder")))
    byte_level = any(decoder["type"] == "ByteLevel" for decoder in kinds)
    space = ""
    for decoder in kinds:
        if decoder["type"] == "Metaspace":
            space = decoder.get("replacement", "▁")
        elif decoder["type"] == "Replace":
            pattern = decoder.get("pattern", {}).get("String")
            if pattern is None or decoder.get("content") != " ":
                raise ValueError(f"tokenizer.json: unsupported Replace decoder {decoder}")
            space = pattern
    return Vocabulary(
        tokens,
        find or ids.get,
        frozenset(special),
        byte_level=byte_level,
        byte_fallback=any(decoder["type"] == "ByteFallback" for decoder in kinds),
        space=space,
    )


def vocabulary_of_bytes(special: Sequence[str], ordinary: Sequence[bytes]) -> Vocabulary:
    """The table of a tokenizer that names its special tokens, which come first, and the bytes of all others.

    Only special tokens are found by their text.
    """
    return Vocabulary(
        [*special, *ordinary],
        {token: token_id for token_id, token in enumerate(special)}.get,
        frozenset(range(len(special))),
        byte_level=False,
        byte_fallback=False,
        space="",
    )


def vocabulary_of_pieces(pieces: Sequence[str], special_ids: frozenset[int]) -> Vocabulary:
    """The table of a SentencePiece model."""
    ids = {piece: token_id for token_id, piece in enumerate(pieces)}
    return Vocabulary(pieces, ids.get, special_ids, byte_level=False, byte_fallback=True, space="▁")


_DECODERS: Final = {"ByteLevel", "ByteFallback", "Replace", "Metaspace", "Fuse", "Strip"}


def _decoders(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        raise ValueError("tokenizer.json has no decoder: its spelling is unknown")
    if decoder["type"] == "Sequence":
        return [inner for part in decoder["decoders"] for inner in _decoders(part)]
    if decoder["type"] not in _DECODERS:
        raise ValueError(f"tokenizer.json: unsupported decoder {decoder['type']!r}")
    return [decoder]


REPLACE_EACH_BYTE: Final = "render-tier-replace-each-byte"
"""Name of the decoding error handler for byte-fallback tokenizers."""


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "�" * (error.end - error.start), error.end


codecs.register_error(REPLACE_EACH_BYTE, _replace_each_byte)
