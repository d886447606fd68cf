"""A tiny model with random weights of Gemma 3's architecture: layers that attend to a sliding window and
layers that attend to everything, so that an engine keeps their KV in groups of different lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.convert import write_safetensors

WINDOW = 256
LAYER_TYPES = ["sliding_attention", "full_attention"] * 2


def write_hybrid_model(
    directory: Path,
    tokenizer: Path,
    *,
    hidden: int = 64,
    inner: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
) -> Path:
    """Same arguments, same model. Tokenizer and chat template are those of the model in `tokenizer`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).symlink_to((tokenizer / name).resolve())
    source = json.loads((tokenizer / "config.json").read_text())
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": source["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": len(LAYER_TYPES),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": head_dim,
        "sliding_window": WINDOW,
        "layer_types": LAYER_TYPES,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": source["bos_token_id"],
        "eos_token_id": source["eos_token_id"],
        "pad_token_id": source["pad_token_id"],
        "dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(5)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        drawn = rng.standard_normal((rows, columns)) / np.sqrt(columns)
        weights: npt.NDArray[np.float32] = drawn.astype(np.float32)
        return weights

    def norm(size: int, gain: float) -> npt.NDArray[np.float32]:
        """The architecture adds one to the weights of its norms."""
        weights: npt.NDArray[np.float32] = np.full(size, gain - 1, np.float32)
        return weights

    # Untied, or the most likely token would be the last one; large keys and queries, or attention would be
    # an average in which no single token counts.
    tensors = [
        ("model.embed_tokens.weight", matrix(source["vocab_size"], hidden)),
        ("lm_head.weight", matrix(source["vocab_size"], hidden)),
        ("model.norm.weight", norm(hidden, 4.0)),
    ]
    for index in range(len(LAYER_TYPES)):
        prefix = f"model.layers.{index}."
        shapes = {
            "self_attn.q_proj": (heads * head_dim, hidden),
            "self_attn.k_proj": (kv_heads * head_dim, hidden),
            "self_attn.v_proj": (kv_heads * head_dim, hidden),
            "self_attn.o_proj": (hidden, heads * head_dim),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        tensors += [(f"{prefix}{name}.weight", matrix(*shape)) for name, shape in shapes.items()]
        tensors += [
            (f"{prefix}self_attn.{name}.weight", norm(head_dim, 1.5)) for name in ("q_norm", "k_norm")
        ]
        tensors += [
            (f"{prefix}{name}_layernorm.weight", norm(hidden, 1.0))
            for name in (
                "input",
                "post_attention",
                "pre_feedforward",
                "post_feedforward",
            )
        ]
    write_safetensors(directory / "model.safetensors", tensors)
    return directory
