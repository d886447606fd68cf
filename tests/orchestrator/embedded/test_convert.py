"""The converted model directory: exact weights, aligned file, the original's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from orchestrator.embedded.convert import (
    PAGE,
    ConversionError,
    convert,
    hf_tensor_name,
    unpermute_rope,
    write_safetensors,
)
from orchestrator.embedded.weights import (
    ModelError,
    eos_token_ids,
    fingerprint,
    load_config,
    load_weights,
    map_safetensors,
)

TEXTS = [*"abcdefgh", "ab", "cd", "abcd", "<|im_start|>", "<|im_end|>"]


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What GGUF writers do to q and k of this architecture."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A GGUF file of one layer with Q8_0 matrices, and what its tensors hold after dequantisation."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TEXTS)
    writer.add_token_types([1] * 11 + [3, 3])
    writer.add_token_merges(["a b", "c d", "ab cd"])
    writer.add_bos_token_id(11)
    writer.add_eos_token_id(12)
    writer.add_pad_token_id(12)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages }}")
    rng = np.random.default_rng(0)
    held: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int, heads: int = 0) -> None:
        weight = rng.standard_normal(shape).astype(np.float32)
        stored = permute(weight, heads) if heads else weight
        if len(shape) == 1:
            writer.add_tensor(name, stored)
            held[name] = stored
            return
        packed = quantize(stored, GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        exact = dequantize(packed, GGMLQuantizationType.Q8_0).reshape(shape)
        held[name] = unpermute_rope(exact, heads) if heads else exact

    add("token_embd.weight", len(TEXTS), 64)
    add("output_norm.weight", 64)
    for name, shape, heads in (
        ("attn_q", (64, 64), 4),
        ("attn_k", (32, 64), 2),
        ("attn_v", (32, 64), 0),
        ("attn_output", (64, 64), 0),
        ("ffn_gate", (96, 64), 0),
        ("ffn_up", (96, 64), 0),
        ("ffn_down", (64, 96), 0),
        ("attn_norm", (64,), 0),
        ("ffn_norm", (64,), 0),
    ):
        add(f"blk.0.{name}.weight", *shape, heads=heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, held


@pytest.fixture(scope="module")
def converted(gguf: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("out") / "model"
    convert(gguf[0], directory)
    return directory


def test_every_weight_is_the_dequantised_one(
    gguf: tuple[Path, dict[str, np.ndarray]], converted: Path
) -> None:
    tensors = map_safetensors(converted / "model.safetensors")
    assert {hf_tensor_name(name) for name in gguf[1]} == set(tensors)
    for name, weight in gguf[1].items():
        got = tensors[hf_tensor_name(name)]
        assert got.dtype == np.float32
        assert np.array_equal(got, weight), name


def test_weights_are_mapped_read_only_and_aligned(converted: Path) -> None:
    path = converted / "model.safetensors"
    assert (int.from_bytes(path.read_bytes()[:8], "little") + 8) % PAGE == 0
    for tensor in map_safetensors(path).values():
        assert not tensor.flags.writeable
        assert tensor.ctypes.data % 64 == 0


def test_the_engine_loads_what_was_converted(converted: Path) -> None:
    config = load_config(converted)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (1, 4, 2, 16)
    assert config.tied
    weights = load_weights(converted, config)
    assert weights.head is weights.embedding
    assert eos_token_ids(converted) == (12,)
    tokenizer = json.loads((converted / "tokenizer_config.json").read_text())
    assert (tokenizer["eos_token"], tokenizer["chat_template"]) == ("<|im_end|>", "{{ messages }}")


def test_tokens_merge_and_specials_stand_alone(converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    ids = tokenizer.encode("<|im_start|>abcdab<|im_end|>", add_special_tokens=False).ids
    assert ids == [11, 10, 8, 12]


def test_rope_order_is_undone() -> None:
    weight = np.arange(8 * 3, dtype=np.float32).reshape(8, 3)
    assert np.array_equal(unpermute_rope(permute(weight, 2), 2), weight)


def test_unknown_tensors_are_refused() -> None:
    for name in ("blk.0.attn_q_norm.weight", "blk.x.attn_q.weight", "rope_freqs.weight"):
        with pytest.raises(ConversionError, match="unknown tensor"):
            hf_tensor_name(name)


def test_a_tensor_that_would_break_alignment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="multiple"):
        write_safetensors(tmp_path / "x", [("a", np.ones(3, np.float32))])


def test_the_fingerprint_follows_weights_and_config(converted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copy / name).write_bytes((converted / name).read_bytes())
    assert fingerprint(copy) == fingerprint(converted)
    changed = bytearray((copy / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (copy / "model.safetensors").write_bytes(changed)
    assert fingerprint(copy) != fingerprint(converted)
    (copy / "model.safetensors").write_bytes((converted / "model.safetensors").read_bytes())
    (copy / "config.json").write_text("{}")
    assert fingerprint(copy) != fingerprint(converted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen3"}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
    ],
)
def test_what_the_engine_cannot_compute_is_refused(
    converted: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    config = {**json.loads((converted / "config.json").read_text()), **change}
    config = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load_config(tmp_path)


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))


NOT_IN_VOCABULARY = {4, 6, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
"""Bytes of valid UTF-8 that the published vocabulary has no token for; they are dropped."""

ENCODABLE = st.characters(exclude_categories=["Cs"]).filter(
    lambda character: NOT_IN_VOCABULARY.isdisjoint(character.encode())
)


@pytest.mark.model
@given(text=st.text(ENCODABLE, max_size=60))
@settings(max_examples=300)
def test_any_text_survives_the_real_tokenizer(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text, add_special_tokens=False).ids
    assert smollm2.decode(ids, skip_special_tokens=False) == text


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        # The ids of the published tokenizer: specials, digits one by one, leading spaces, newlines.
        ("<|im_start|>user\nHi<|im_end|>", [1, 4093, 198, 26843, 2]),
        ("2024", [34, 32, 34, 36]),
        ("<|endoftext|>", [0]),
    ],
)
def test_known_ids_of_the_real_tokenizer(smollm2: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm2.encode(text, add_special_tokens=False).ids == ids
