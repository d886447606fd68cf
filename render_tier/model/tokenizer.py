"""tokenizer.json as an encoder and as plain data, with the tokens that only tokenizer_config.json names.

The encoder is the ``tokenizers`` library's; transformers is never imported. What transformers would add when
it loads the same directory (tokens of ``added_tokens_decoder`` and named special tokens that tokenizer.json
lacks) is added here too, so IDs agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from render_tier.model.files import ModelLoadError, read_json_object

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class _ModelPart(msgspec.Struct):
    """The tokenizer model without its merges: most of the file, and of no use outside the encoder."""

    vocab: Any = None
    type: str | None = None
    byte_fallback: bool = False
    unk_token: str | None = None


class _TokenizerFile(msgspec.Struct):
    model: _ModelPart
    added_tokens: list[dict[str, Any]] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    encoder: Tokenizer
    data: dict[str, Any]
    """tokenizer.json without merges; ``added_tokens`` includes those that tokenizer_config.json adds."""
    special_tokens: dict[str, str | list[str]]
    """Named special tokens, as a chat template sees them."""
    raw: bytes
    """The file's bytes, for the fingerprint."""
    added: tuple[AddedToken, ...]
    """What the encoder has beyond the file, in the order in which it was added."""


def load_tokenizer(directory: Path, tokenizer_config: dict[str, Any]) -> LoadedTokenizer:
    """Read ``tokenizer.json`` of ``directory``. Raises ModelLoadError when it is absent or cannot be used."""
    path = directory / "tokenizer.json"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ModelLoadError(
            f"{directory} has no tokenizer.json; only models with a `tokenizers` file can be rendered"
        ) from None
    try:
        file = msgspec.json.decode(raw, type=_TokenizerFile)
        encoder = Tokenizer.from_buffer(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} is not a tokenizer file: {error}") from error
    except Exception as error:  # the library raises bare Exception and ValueError
        raise ModelLoadError(f"{path} cannot be loaded by the tokenizers library: {error}") from error
    # A file may carry padding or truncation from training; neither belongs in a served prompt.
    encoder.no_padding()
    encoder.no_truncation()
    special = _special_tokens(directory, tokenizer_config)
    tokens, entries = _add_missing(encoder, file.added_tokens, tokenizer_config, special)
    file.added_tokens = file.added_tokens + entries
    return LoadedTokenizer(encoder, msgspec.to_builtins(file), special, raw, tuple(tokens))


def _text_of(token: Any) -> str | None:
    if isinstance(token, str):
        return token
    if isinstance(token, dict) and isinstance(token.get("content"), str):
        content: str = token["content"]
        return content
    return None


def _special_tokens(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str | list[str]]:
    named = {**(read_json_object(directory / "special_tokens_map.json") or {}), **tokenizer_config}
    found: dict[str, str | list[str]] = {}
    for name in SPECIAL_TOKEN_NAMES:
        text = _text_of(named.get(name))
        if text is not None:
            found[name] = text
    extra = named.get("additional_special_tokens") or named.get("extra_special_tokens")
    if isinstance(extra, dict):
        for name, token in extra.items():
            text = _text_of(token)
            if text is not None:
                found[name] = text
    elif isinstance(extra, list):
        texts = [text for token in extra if (text := _text_of(token)) is not None]
        if texts:
            found["additional_special_tokens"] = texts
    return found


def _add_missing(
    encoder: Tokenizer,
    present: list[dict[str, Any]],
    tokenizer_config: dict[str, Any],
    special: dict[str, str | list[str]],
) -> tuple[list[AddedToken], list[dict[str, Any]]]:
    """Add to ``encoder`` what only tokenizer_config.json names, in ID order; return the tokens and their
    entries."""
    known = {str(entry.get("content")) for entry in present}
    special_texts = [
        text for value in special.values() for text in (value if isinstance(value, list) else [value])
    ]
    wanted: list[dict[str, Any]] = []
    decoder = tokenizer_config.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for _, token in sorted(
            ((int(key), value) for key, value in decoder.items() if str(key).isdigit()),
            key=lambda item: item[0],
        ):
            text = _text_of(token)
            if text is not None and text not in known:
                known.add(text)
                options = token if isinstance(token, dict) else {}
                wanted.append({**options, "content": text, "special": bool(options.get("special"))})
    for text in special_texts:
        if text not in known:
            known.add(text)
            wanted.append({"content": text, "special": True, "normalized": False})
    tokens: list[AddedToken] = []
    added: list[dict[str, Any]] = []
    for entry in wanted:
        is_special = bool(entry.get("special")) or entry["content"] in special_texts
        token = AddedToken(
            entry["content"],
            single_word=bool(entry.get("single_word", False)),
            lstrip=bool(entry.get("lstrip", False)),
            rstrip=bool(entry.get("rstrip", False)),
            normalized=bool(entry.get("normalized", not is_special)),
            special=is_special,
        )
        if is_special:
            encoder.add_special_tokens([token])
        else:
            encoder.add_tokens([token])
        tokens.append(token)
        identifier = encoder.token_to_id(entry["content"])
        if identifier is not None:
            added.append({**entry, "id": identifier, "special": is_special})
    return tokens, added
