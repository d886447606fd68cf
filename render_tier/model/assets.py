"""Everything the render tier knows about the served model, read once at start and never changed.

Workers share it by fork, so nothing here encodes, opens threads or keeps file handles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog
from tokenizers import AddedToken

from render_tier.core.formats import UnknownFormat, reasoning_format, tool_format
from render_tier.core.vocabulary import Vocabulary
from render_tier.model.chat_template import DEFAULT_NAME, load_templates, operator_template, select_template
from render_tier.model.context_length import resolve_max_model_len, text_config
from render_tier.model.engines import ReferenceTokenizer
from render_tier.model.files import ModelLoadError, locate, read_json_object
from render_tier.model.mistral_format import ConfigFormat, image_config
from render_tier.model.mistral_tokenizer import MistralTokenizer
from render_tier.model.parser_choice import AUTO, choose_reasoning_parser, choose_tool_parser
from render_tier.model.parser_plugins import load_plugin
from render_tier.model.served_tokenizer import ServedTokenizer, TokenizerMode, load_served_tokenizer

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class ModelAssets:
    name: str
    """The model as the operator named it: a path or a hub name."""
    served_names: tuple[str, ...]
    """Names that clients may use; the first is the default in answers."""
    directory: Path
    config: dict[str, Any]
    image_config: dict[str, Any]
    """What decides on images, in the words of `config`."""
    generation_config: dict[str, Any]
    """Sampling defaults and EOS IDs after ``--generation-config`` and ``--override-generation-config``."""
    max_tokens_cap: int | None
    """The operator's max_new_tokens: unlike the model's own, no request may exceed it."""
    tokenizer: ReferenceTokenizer
    mistral: MistralTokenizer | None
    """`tokenizer`, for a model that is served with one of Mistral's format."""
    tokenizer_json: dict[str, Any]
    """tokenizer.json without vocabulary and merges, and with the added tokens of tokenizer_config.json; empty
    where there is none."""
    added_tokens: tuple[AddedToken, ...]
    """What `tokenizer` has beyond tokenizer.json."""
    tokenizer_config: dict[str, Any]
    special_tokens: dict[str, str | list[str]]
    vocabulary: Vocabulary
    vocab_size: int
    """Token IDs below this exist in the model's embedding (or, without a config.json, in the tokenizer)."""
    max_chars_per_token: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    """The template used without tools; None when the model has none."""
    tool_chat_template: str | None
    """The template used with tools (the same one unless the model names a "tool_use" template)."""
    reasoning_parser: str | None
    """Name of the parser, after "auto" was resolved."""
    tool_parser: str | None
    """As `reasoning_parser`."""
    fingerprint: str
    """Digest of all that decides token IDs and their reading; members of one deployment must agree."""


def load_assets(
    model: str,
    *,
    served_names: Sequence[str] = (),
    max_model_len: int | None = None,
    chat_template: str | None = None,
    generation_config: str = "auto",
    override_generation_config: Mapping[str, Any] | None = None,
    revision: str | None = None,
    reasoning_parser: str | None = None,
    tool_parser: str | None = None,
    parser_plugins: Sequence[str] = (),
    tokenizer_mode: TokenizerMode = "auto",
    config_format: ConfigFormat = "auto",
) -> ModelAssets:
    """Read the model's files.

    ``generation_config``: "auto" (the model's own), "vllm" (none), or a directory. ``chat_template``: a file
    or a template. ``reasoning_parser``, ``tool_parser``: names, or "auto". ``parser_plugins``: files with
    more parsers, registered for the whole process. ``tokenizer_mode``: "hf" (tokenizer.json), "mistral"
    (a file of mistral-common's), or "auto", which takes Mistral's in a repository of Mistral's own layout.
    ``config_format``: by which file engines go for images.
    Raises ModelLoadError.
    """
    directory = locate(model, revision)
    tokenizer_config = read_json_object(directory / "tokenizer_config.json") or {}
    config = _config(directory)
    length = resolve_max_model_len(config, tokenizer_config, max_model_len)
    tokens = load_served_tokenizer(directory, tokenizer_config, tokenizer_mode)
    if tokens.mistral is not None:
        templates: dict[str, str] = {}  # mistral-common writes chats itself
    elif chat_template is not None:
        templates = {DEFAULT_NAME: operator_template(chat_template)}
    else:
        templates = load_templates(directory, tokenizer_config)
    overrides = dict(override_generation_config or {})
    generation = _generation_config(directory, generation_config, overrides)
    vocabulary = tokens.vocabulary
    names = tuple(served_names) or (model,)
    plain, with_tools = select_template(templates, False), select_template(templates, True)
    plugins = [load_plugin(file) for file in parser_plugins]
    chosen = _parsers(reasoning_parser, tool_parser, config, (plain, with_tools), vocabulary)
    if config.get("model_type") == HARMONY_MODEL_TYPE:
        _check_harmony_parsers(chosen)
    return ModelAssets(
        name=model,
        served_names=names,
        directory=directory,
        config=config,
        image_config=image_config(directory, config, tokens.mistral, config_format),
        generation_config=generation,
        max_tokens_cap=_max_tokens_cap(generation_config, generation, overrides),
        tokenizer=tokens.reference,
        mistral=tokens.mistral,
        tokenizer_json=tokens.data,
        added_tokens=tokens.added,
        tokenizer_config=tokenizer_config,
        special_tokens=tokens.special_tokens,
        vocabulary=vocabulary,
        vocab_size=_vocab_size(config, vocabulary),
        max_chars_per_token=tokens.longest,
        max_model_len=length,
        eos_token_ids=_eos_token_ids(directory, config, generation, tokens.eos_id),
        chat_template=plain,
        tool_chat_template=with_tools,
        reasoning_parser=chosen["reasoning"],
        tool_parser=chosen["tool"],
        fingerprint=_fingerprint(
            tokens=tokens,
            templates={"default": plain, "tool_use": with_tools},
            parsers={**chosen, "plugins": plugins} if plugins else chosen,
            model=names[0],
            max_model_len=length,
        ),
    )


HARMONY_MODEL_TYPE = "gpt_oss"
"""Its chats are messages of the harmony format, which no template writes and no other parser reads."""
HARMONY_PARSERS = {"reasoning": "openai_gptoss", "tool": "openai"}
PARAMS_LENGTH = 128_000
"""Positions of a model whose params.json names none."""


def _config(directory: Path) -> dict[str, Any]:
    """config.json, or what of Mistral's params.json says the same."""
    config = read_json_object(directory / "config.json")
    if config is not None:
        return config
    params = read_json_object(directory / "params.json")
    if params is None:
        return {}
    length = params.get("max_position_embeddings") or params.get("max_seq_len") or PARAMS_LENGTH
    config = {"model_type": "mistral", "max_position_embeddings": length}
    if "vocab_size" in params:
        config["vocab_size"] = params["vocab_size"]
    return config


def _check_harmony_parsers(chosen: Mapping[str, str | None]) -> None:
    for kind, parser in chosen.items():
        if parser not in (None, HARMONY_PARSERS[kind]):
            raise ModelLoadError(
                f"gpt-oss writes harmony messages: its {kind} parser is {HARMONY_PARSERS[kind]!r}, "
                f"not {parser!r}"
            )


def _parsers(
    reasoning: str | None,
    tool: str | None,
    config: dict[str, Any],
    templates: tuple[str | None, str | None],
    vocabulary: Vocabulary,
) -> dict[str, str | None]:
    """The parsers' names with "auto" resolved. Raises ModelLoadError for a name that no parser has."""
    names = {"reasoning": reasoning, "tool": tool}
    for kind, choose in (("reasoning", choose_reasoning_parser), ("tool", choose_tool_parser)):
        if names[kind] == AUTO:
            choice = choose(config, templates, vocabulary)
            names[kind] = choice.parser
            log.info("parser_chosen", kind=kind, parser=choice.parser, reason=choice.reason)
    try:
        if names["reasoning"] is not None:
            reasoning_format(names["reasoning"])
        if names["tool"] is not None:
            tool_format(names["tool"])
    except UnknownFormat as error:
        raise ModelLoadError(str(error)) from None
    return names


def _generation_config(directory: Path, source: str, overrides: dict[str, Any]) -> dict[str, Any]:
    if source == "vllm":
        base: dict[str, Any] = {}
    elif source == "auto":
        base = read_json_object(directory / "generation_config.json") or {}
    else:
        path = Path(source)
        found = read_json_object(path / "generation_config.json" if path.is_dir() else path)
        if found is None:
            raise ModelLoadError(f"--generation-config {source!r}: no generation_config.json there")
        base = found
    return {key: value for key, value in {**base, **overrides}.items() if value is not None}


def _max_tokens_cap(source: str, generation: dict[str, Any], overrides: dict[str, Any]) -> int | None:
    chosen = overrides if source in ("auto", "vllm") else generation
    cap = chosen.get("max_new_tokens")
    return cap if isinstance(cap, int) else None


def _vocab_size(config: dict[str, Any], vocabulary: Vocabulary) -> int:
    configured = text_config(config).get("vocab_size")
    return configured if isinstance(configured, int) and configured > 0 else vocabulary.size


def _eos_token_ids(
    directory: Path, config: dict[str, Any], generation: dict[str, Any], tokenizer_eos: int | None
) -> tuple[int, ...]:
    """IDs on which a coupled server stops by itself: the tokenizer's EOS, then those of the generation config
    (of config.json when there is no generation config). A tokens-only engine knows only what it is told."""
    found = [] if tokenizer_eos is None else [tokenizer_eos]
    declared = generation.get("eos_token_id")
    if declared is None and (
        own := read_json_object(directory / "generation_config.json") or text_config(config)
    ):
        # `--generation-config vllm` drops sampling defaults, not the model's stop tokens.
        declared = own.get("eos_token_id")
    for identifier in declared if isinstance(declared, list) else [declared]:
        if isinstance(identifier, int) and identifier not in found:
            found.append(identifier)
    return tuple(found)


def _fingerprint(
    *,
    tokens: ServedTokenizer,
    templates: Mapping[str, str | None],
    parsers: Mapping[str, object],
    model: str,
    max_model_len: int,
) -> str:
    digest = hashlib.blake2b(tokens.raw, digest_size=16)
    rest = {
        "added_tokens": tokens.data["added_tokens"],
        "special_tokens": tokens.special_tokens,
        "templates": templates,
        "parsers": parsers,
        "model": model,
        "max_model_len": max_model_len,
    }
    digest.update(msgspec.json.encode(rest, order="sorted"))
    return digest.hexdigest()
