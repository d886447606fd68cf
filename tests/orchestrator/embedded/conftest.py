"""A tiny random Llama for the engine's tests: every code path of the real one at a thousandth of its cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from orchestrator.embedded.convert import write_safetensors
from tests.orchestrator.embedded.engines import EOS, VOCABULARY

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 2, 4, 2, 16


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, untied head, fixed seed."""
    directory = tmp_path_factory.mktemp("tiny")
    rng = np.random.default_rng(7)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale * columns**-0.5).astype(np.float32)

    tensors = [("model.embed_tokens.weight", matrix(VOCABULARY, HIDDEN, 4.0))]
    tensors += [("lm_head.weight", matrix(VOCABULARY, HIDDEN, 3.0))]
    tensors += [("model.norm.weight", np.ones(HIDDEN, np.float32))]
    for index in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        prefix = f"model.layers.{index}."
        tensors += [(f"{prefix}{name}.weight", matrix(*shape, 2.0)) for name, shape in shapes.items()]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors.append((f"{prefix}{norm}.weight", np.ones(HIDDEN, np.float32)))
    write_safetensors(directory / "model.safetensors", tensors)
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "eos_token_id": EOS,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
