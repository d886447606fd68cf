"""Bytes of KV that a prompt has, from a model's config.json.

Attention with heads of keys and values: ``2 * kv_heads * head_dim`` numbers for each token and layer. Latent
attention (DeepSeek's MLA): one vector of ``kv_lora_rank + qk_rope_head_dim`` numbers. A layer with a sliding
window keeps no more tokens than the window; a layer of linear attention keeps a state of fixed size, which is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NUMBER_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
WITHOUT_KV: Final = ("linear_attention", "conv", "mamba")


class UnknownShape(ValueError):
    """The configuration does not tell what is needed; the message names the key."""


@dataclass(frozen=True)
class KvSize:
    full_layers: int
    windowed_layers: int
    window: int
    """Tokens; 0 without windowed layers."""
    layer_bytes: int
    """Of one token in one layer."""

    @property
    def bytes_per_token(self) -> int:
        """Of each further token, once windows are full."""
        return self.full_layers * self.layer_bytes

    def of(self, tokens: int) -> int:
        """Bytes of a prompt."""
        kept = self.full_layers * tokens + self.windowed_layers * min(tokens, self.window)
        return kept * self.layer_bytes


def kv_size(config: Any, kv_dtype: str | None = None) -> KvSize:
    """``config``: the content of config.json. ``kv_dtype``: what the cache holds, by default the model's own
    number type. Raises ``UnknownShape``."""
    if not isinstance(config, Mapping):
        raise UnknownShape("the configuration is not an object")
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise UnknownShape("text_config is not an object")
    dtype = kv_dtype or text.get("dtype") or text.get("torch_dtype") or config.get("dtype")
    dtype = dtype or config.get("torch_dtype")
    if not isinstance(dtype, str) or dtype not in NUMBER_BYTES:
        told = "the configuration names no dtype" if dtype is None else f"dtype {dtype!r} is not known"
        raise UnknownShape(f"{told}: name the cache's own (kv-dtype), one of {', '.join(NUMBER_BYTES)}")
    layers = _count(text, "num_hidden_layers")
    if "kv_lora_rank" in text and text["kv_lora_rank"] is not None:
        numbers = _count(text, "kv_lora_rank") + _count(text, "qk_rope_head_dim")
    else:
        heads = _count(text, "num_attention_heads")
        kv_heads = _count(text, "num_key_value_heads") if text.get("num_key_value_heads") else heads
        size = _count(text, "head_dim") if text.get("head_dim") else _count(text, "hidden_size") // heads
        numbers = 2 * kv_heads * size
    kinds = text.get("layer_types") or ["full_attention"] * layers
    if not isinstance(kinds, list):
        raise UnknownShape("layer_types is not a list")
    window = _count(text, "sliding_window") if text.get("sliding_window") else 0
    known = ("full_attention", "sliding_attention", *WITHOUT_KV)
    strange = sorted({str(kind) for kind in kinds} - set(known))
    if strange or len(kinds) != layers:
        raise UnknownShape(f"layer_types: {', '.join(strange) or f'{len(kinds)} of {layers} layers'}")
    if "sliding_attention" in kinds and not window:
        raise UnknownShape("sliding_window is missing")
    return KvSize(
        full_layers=kinds.count("full_attention"),
        windowed_layers=kinds.count("sliding_attention"),
        window=window if "sliding_attention" in kinds else 0,
        layer_bytes=numbers * NUMBER_BYTES[dtype],
    )


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise UnknownShape(f"{key} is {value!r}, not a positive integer")
    return value
