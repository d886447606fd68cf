"""Model configuration and weights, mapped read-only from a Hugging Face style directory (Llama, float32)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

FINGERPRINT_SAMPLES: Final = 256
FINGERPRINT_SAMPLE_BYTES: Final = 4096


class ModelError(ValueError):
    """The model directory is missing, incomplete or of a kind that this engine cannot compute."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama model."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tied: bool


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Matrices are ``(out, in)``; norms are ``(hidden,)``."""

    input_norm: FloatArray
    q: FloatArray
    k: FloatArray
    v: FloatArray
    o: FloatArray
    post_norm: FloatArray
    gate: FloatArray
    up: FloatArray
    down: FloatArray


@dataclass(frozen=True)
class Weights:
    embedding: FloatArray
    layers: tuple[LayerWeights, ...]
    norm: FloatArray
    head: FloatArray


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def eos_token_ids(directory: Path) -> tuple[int, ...]:
    """EOS ids: those of generation_config.json when it names any, else those of config.json."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            value = read_json(path).get("eos_token_id")
            if isinstance(value, int):
                return (value,)
            if isinstance(value, list):
                return tuple(int(token) for token in value)
    return ()


def load_config(directory: Path) -> ModelConfig:
    """The shape of the model; refuses what the forward pass does not implement."""
    config = read_json(directory / "config.json")
    if config.get("model_type") != "llama":
        raise ModelError(f"model_type {config.get('model_type')!r} is not supported; only 'llama' is")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ModelError(f"{key} is not supported")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise ModelError(f"rope_type {rope['rope_type']!r} is not supported")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act {config['hidden_act']!r} is not supported")
    try:
        heads = int(config["num_attention_heads"])
        return ModelConfig(
            vocab_size=int(config["vocab_size"]),
            hidden_size=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or config["rope_theta"]),
            max_position_embeddings=int(config["max_position_embeddings"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise ModelError(f"config.json has no {error}") from error


def map_safetensors(path: Path) -> dict[str, FloatArray]:
    """Tensors of a safetensors file as read-only views of one memory map: processes share the pages."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    tensors: dict[str, FloatArray] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ModelError(f"tensor {name!r} is {entry['dtype']}; the engine computes in F32 weights")
        start, end = entry["data_offsets"]
        tensors[name] = np.asarray(data[start:end]).view(np.float32).reshape(entry["shape"])
    return tensors


def load_weights(directory: Path, config: ModelConfig) -> Weights:
    tensors = map_safetensors(directory / "model.safetensors")

    def tensor(name: str, *shape: int) -> FloatArray:
        if name not in tensors:
            raise ModelError(f"model.safetensors has no tensor {name!r}")
        if tensors[name].shape != shape:
            raise ModelError(f"tensor {name!r} has shape {tensors[name].shape}, expected {shape}")
        return tensors[name]

    hidden, q_rows = config.hidden_size, config.heads * config.head_dim
    kv_rows = config.kv_heads * config.head_dim
    inner = len(tensors.get("model.layers.0.mlp.gate_proj.weight", ()))

    def layer(index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        return LayerWeights(
            input_norm=tensor(f"{prefix}input_layernorm.weight", hidden),
            q=tensor(f"{prefix}self_attn.q_proj.weight", q_rows, hidden),
            k=tensor(f"{prefix}self_attn.k_proj.weight", kv_rows, hidden),
            v=tensor(f"{prefix}self_attn.v_proj.weight", kv_rows, hidden),
            o=tensor(f"{prefix}self_attn.o_proj.weight", hidden, q_rows),
            post_norm=tensor(f"{prefix}post_attention_layernorm.weight", hidden),
            gate=tensor(f"{prefix}mlp.gate_proj.weight", inner, hidden),
            up=tensor(f"{prefix}mlp.up_proj.weight", inner, hidden),
            down=tensor(f"{prefix}mlp.down_proj.weight", hidden, inner),
        )

    embedding = tensor("model.embed_tokens.weight", config.vocab_size, hidden)
    return Weights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.layers)),
        norm=tensor("model.norm.weight", hidden),
        head=embedding if config.tied else tensor("lm_head.weight", config.vocab_size, hidden),
    )


def fingerprint(directory: Path) -> str:
    """Digest of the configuration and of evenly spaced pages of the weights: cheap, and different for any
    two models that differ by more than a few isolated numbers."""
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    path = directory / "model.safetensors"
    if path.is_file():
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for sample in range(FINGERPRINT_SAMPLES):
                file.seek(size * sample // FINGERPRINT_SAMPLES)
                digest.update(file.read(FINGERPRINT_SAMPLE_BYTES))
    return digest.hexdigest()
