"""Convert a GGUF file of the Llama architecture into a Hugging Face style model directory.

Weights are written as float32, exactly as dequantised, so that any float32 implementation that loads the
directory computes with the very same numbers. The tensor data starts on a page boundary and every tensor on a
64-byte one: the engine maps the file read-only and all engine processes share one copy in the page cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

PAGE: Final = 4096
TENSOR_ALIGNMENT: Final = 64

CONTROL_TOKEN: Final = 3
USER_DEFINED_TOKEN: Final = 4
"""Token types of GGUF's ``tokenizer.ggml.token_type``."""

FloatArray = npt.NDArray[np.float32]

_TOP_LEVEL: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PER_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class ConversionError(ValueError):
    """The GGUF file holds something that this converter does not know how to write down exactly."""


def hf_tensor_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor of the Llama architecture."""
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match = re.fullmatch(r"blk\.(\d+)\.([a-z_]+)\.weight", name)
    if match is None or match[2] not in _PER_LAYER:
        raise ConversionError(f"unknown tensor {name!r}")
    return f"model.layers.{match[1]}.{_PER_LAYER[match[2]]}.weight"


def unpermute_rope(weight: FloatArray, heads: int) -> FloatArray:
    """Undo GGUF's interleaving of rotary pairs: ``(heads * head_dim, hidden)`` with pairs (0,1),(2,3)…
    becomes the half-split order (0,d/2),(1,d/2+1)… that the Hugging Face weights use."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_safetensors(path: Path, tensors: Iterable[tuple[str, FloatArray]]) -> None:
    """Write float32 tensors; the data region starts at a multiple of the page size.

    The format allows no holes between tensors, so each tensor's size must be a multiple of the alignment.
    """
    items = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in items:
        if array.dtype != np.float32 or array.nbytes % TENSOR_ALIGNMENT:
            raise ConversionError(
                f"tensor {name!r} is not a float32 array of a multiple of {TENSOR_ALIGNMENT} bytes"
            )
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-(len(encoded) + 8) % PAGE)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for _, array in items:
            file.write(np.ascontiguousarray(array).data)


def build_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer described by a GGUF file's ``tokenizer.ggml.*`` fields."""
    if fields["tokenizer.ggml.model"] != "gpt2" or fields["tokenizer.ggml.pre"] != "smollm":
        raise ConversionError(
            f"unknown tokenizer {fields['tokenizer.ggml.model']!r} / {fields['tokenizer.ggml.pre']!r}"
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    merges: list[tuple[str, str]] = []
    for merge in fields["tokenizer.ggml.merges"]:
        left, right = merge.split(" ", 1)
        merges.append((left, right))
    tokenizer = Tokenizer(BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    user_defined = [t for t, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    if user_defined:
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t in user_defined])
    if tokenizer.get_vocab_size() != len(tokens):
        raise ConversionError("the token list holds duplicates")
    return tokenizer


def model_config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """``config.json`` of a Llama model."""

    def value(key: str) -> Any:
        return fields[f"llama.{key}"]

    heads = value("attention.head_count")
    theta = float(value("rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("embedding_length") // heads,
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": round(float(value("attention.layer_norm_rms_epsilon")), 12),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def convert(source: Path, destination: Path) -> None:
    """Write the model directory ``destination`` (created) from the GGUF file ``source``."""
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise ConversionError(f"unknown architecture {fields['general.architecture']!r}")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = model_config(fields, tied=tied)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def tensors() -> Iterable[tuple[str, FloatArray]]:
        for tensor in reader.tensors:
            name = hf_tensor_name(tensor.name)
            shape = tuple(int(size) for size in tensor.shape[::-1])
            array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False).reshape(shape)
            projection = name.split(".")[-2]
            yield name, unpermute_rope(array, heads[projection]) if projection in heads else array

    destination.mkdir(parents=True, exist_ok=True)
    write_safetensors(destination / "model.safetensors", tensors())
    _write_json(destination / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(destination / "generation_config.json", special)
    tokenizer = build_tokenizer(fields)
    tokenizer.save(str(destination / "tokenizer.json"), pretty=False)
    tokens = fields["tokenizer.ggml.tokens"]
    template = fields["tokenizer.chat_template"]
    (destination / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(
        destination / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[special["bos_token_id"]],
            "eos_token": tokens[special["eos_token_id"]],
            "pad_token": tokens[special["pad_token_id"]],
            "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
            "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "chat_template": template,
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
