"""Model directories with random weights of the Llama architecture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.convert import write_safetensors


def write_random_llama(
    directory: Path,
    *,
    vocabulary: int,
    eos: list[int],
    hidden: int = 64,
    inner: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    positions: int = 4096,
) -> Path:
    """Same arguments, same model."""
    rng = np.random.default_rng(7)
    head_dim = hidden // heads

    def matrix(rows: int, columns: int, scale: float) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * scale * columns**-0.5).astype(np.float32)

    def ones() -> npt.NDArray[np.float32]:
        return np.ones(hidden, np.float32)

    tensors = [("model.embed_tokens.weight", matrix(vocabulary, hidden, 4.0))]
    tensors += [("lm_head.weight", matrix(vocabulary, hidden, 3.0)), ("model.norm.weight", ones())]
    for index in range(layers):
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv_heads * head_dim, hidden),
            "self_attn.v_proj": (kv_heads * head_dim, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        prefix = f"model.layers.{index}."
        tensors += [(f"{prefix}{name}.weight", matrix(*shape, 2.0)) for name, shape in shapes.items()]
        tensors += [(f"{prefix}input_layernorm.weight", ones())]
        tensors += [(f"{prefix}post_attention_layernorm.weight", ones())]
    write_safetensors(directory / "model.safetensors", tensors)
    config = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": positions,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return directory
