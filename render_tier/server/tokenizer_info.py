"""``GET /tokenizer_info``: the tokenizer's configuration, as vLLM shows it.

vLLM shows what transformers keeps of tokenizer_config.json: tokens as their text, all added tokens by ID, and
some keys under newer names. What it tells of its own loading (``local_files_only``, the names of its wrapper
classes) is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from render_tier.model import ModelAssets

LEFT_OUT = frozenset({"vocab_file", "merges_file", "add_bos_token", "add_eos_token"})
"""Files, and switches that act through tokenizer.json."""
DEFAULT_CLASS = "TokenizersBackend"
GENERIC_CLASSES = frozenset({"PreTrainedTokenizerFast", "PreTrainedTokenizer"})


def tokenizer_info(assets: ModelAssets) -> dict[str, Any]:
    config = {name: _plain(value) for name, value in assets.tokenizer_config.items() if name not in LEFT_OUT}
    named = config.pop("additional_special_tokens", None)
    extra = config.pop("extra_special_tokens", None)
    if isinstance(extra, dict):
        if extra:
            config |= {"model_specific_special_tokens": extra} | extra
    elif extra or named:
        config["extra_special_tokens"] = extra or named
    added = assets.tokenizer_json.get("added_tokens") or ()
    config |= {
        "added_tokens_decoder": {str(token["id"]): token["content"] for token in added},
        "truncation_side": "left",
        "name_or_path": assets.name,
        "is_local": Path(assets.name) == assets.directory,
        "backend": "tokenizers",
        "tokenizer_class": _class_name(config.get("tokenizer_class")),
    }
    if assets.chat_template is not None:
        config["chat_template"] = assets.chat_template
    return config


def _class_name(declared: Any) -> str:
    if not isinstance(declared, str) or declared in GENERIC_CLASSES:
        return DEFAULT_CLASS
    return declared.removesuffix("Fast")


def _plain(value: Any) -> Any:
    """A token object as its text, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get("content"), str):
            return value["content"]
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
