"""A tiny model with random weights of Qwen2.5-VL's architecture, for real engines: it has Qwen3's tokenizer,
and what it says depends on the pictures that it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.convert import write_safetensors
from tests.support import vision_models

HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64  # a head's size is one that vLLM's attention on a CPU has
HIDDEN, INNER, LAYERS = HEADS * HEAD_DIM, 256, 2
EYE, EYE_INNER, EYE_LAYERS, MERGED = 64, 128, 2, 4
"""Sizes of the vision part; ``MERGED`` patches make a token."""

Tensor = tuple[str, npt.NDArray[np.float32]]


def write_seeing_model(tokenizers: Path, directory: Path) -> Path:
    """Same arguments, same model. ``tokenizers`` has Qwen3's."""
    vision_models.lay_out("qwen2_5_vl", tokenizers, directory)
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "torch_dtype": "float32",
    }
    config["vision_config"] |= {
        "depth": EYE_LAYERS,
        "hidden_size": EYE,
        "intermediate_size": EYE_INNER,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
    }
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(directory / "model.safetensors", _tensors(config["vocab_size"]))
    return directory


def _tensors(vocabulary: int) -> list[Tensor]:
    rng = np.random.default_rng(11)

    def matrix(*shape: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        fan_in = int(np.prod(shape[1:]))
        drawn = rng.standard_normal(shape) * (scale / np.sqrt(fan_in))
        weights: npt.NDArray[np.float32] = drawn.astype(np.float32)
        return weights

    def linear(name: str, rows: int, columns: int, scale: float = 1.0) -> list[Tensor]:
        return [
            (f"{name}.weight", matrix(rows, columns, scale=scale)),
            (f"{name}.bias", np.zeros(rows, np.float32)),
        ]

    def norm(name: str, size: int) -> Tensor:
        return f"{name}.weight", np.ones(size, np.float32)

    eye = "model.visual."
    tensors = [(f"{eye}patch_embed.proj.weight", matrix(EYE, 3, 2, 14, 14, scale=4.0))]
    for index in range(EYE_LAYERS):
        block = f"{eye}blocks.{index}."
        tensors += [norm(f"{block}norm1", EYE), norm(f"{block}norm2", EYE)]
        tensors += linear(f"{block}attn.qkv", 3 * EYE, EYE, 2.0) + linear(f"{block}attn.proj", EYE, EYE)
        tensors += linear(f"{block}mlp.gate_proj", EYE_INNER, EYE) + linear(
            f"{block}mlp.up_proj", EYE_INNER, EYE
        )
        tensors += linear(f"{block}mlp.down_proj", EYE, EYE_INNER)
    wide = MERGED * EYE
    tensors += [norm(f"{eye}merger.ln_q", EYE)]
    tensors += linear(f"{eye}merger.mlp.0", wide, wide, 2.0) + linear(f"{eye}merger.mlp.2", HIDDEN, wide, 8.0)
    # Untied, or the most likely token would be the last one; large keys and queries, or attention would be an
    # average in which no single token counts.
    text = "model.language_model."
    tensors += [
        (f"{text}embed_tokens.weight", matrix(vocabulary, HIDDEN, scale=4.0)),
        ("lm_head.weight", matrix(vocabulary, HIDDEN, scale=3.0)),
        norm(f"{text}norm", HIDDEN),
    ]
    for index in range(LAYERS):
        layer = f"{text}layers.{index}."
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            tensors += linear(f"{layer}self_attn.{name}_proj", rows, HIDDEN, 2.0)
        tensors += [
            (f"{layer}self_attn.o_proj.weight", matrix(HIDDEN, HEADS * HEAD_DIM, scale=2.0)),
            (f"{layer}mlp.gate_proj.weight", matrix(INNER, HIDDEN, scale=2.0)),
            (f"{layer}mlp.up_proj.weight", matrix(INNER, HIDDEN, scale=2.0)),
            (f"{layer}mlp.down_proj.weight", matrix(HIDDEN, INNER, scale=2.0)),
            norm(f"{layer}input_layernorm", HIDDEN),
            norm(f"{layer}post_attention_layernorm", HIDDEN),
        ]
    return tensors
