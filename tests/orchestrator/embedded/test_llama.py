"""The forward pass against one written in float64, and its independence of all but the sequence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.embedded.arithmetic import best_steps
from orchestrator.embedded.backend import DecodeRow
from orchestrator.embedded.kv_store import KVLayout, KVStore, runs
from orchestrator.embedded.llama import Llama
from orchestrator.embedded.numpy_steps import NumpySteps
from orchestrator.embedded.steps import Steps
from orchestrator.embedded.weights import ModelConfig, Weights, load_config, load_weights
from orchestrator.embedded.workers import Workers
from tests.orchestrator.embedded.engines import prompt

Double = npt.NDArray[np.float64]
BLOCKS = 40


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Llama:
    config = load_config(tiny_model)
    store = KVStore(Llama.layout(config, 16), BLOCKS)
    return Llama(config, load_weights(tiny_model, config), store, 512, best_steps(), Workers(2))


def rebuilt(model: Llama, *, threads: int = 2, together: bool = True, steps: Steps | None = None) -> Llama:
    """The same model with KV memory of its own."""
    store = KVStore(model.store.layout, BLOCKS)
    other = Llama(model.config, model._weights, store, 512, steps or best_steps(), Workers(threads))
    assert other.rows_together
    other.rows_together = together
    return other


def reference_logits(config: ModelConfig, weights: Weights, tokens: list[int]) -> Double:
    """Logits ``(tokens, vocab)`` by the architecture's definition: no cache, no chunks, float64."""
    count, dim = len(tokens), config.head_dim
    frequencies = config.rope_theta ** (-np.arange(0, dim, 2) / dim)
    angles = np.outer(np.arange(count), frequencies)
    turn = np.exp(1j * angles)[:, None, :]
    shared = config.heads // config.kv_heads

    def norm(x: Double, weight: npt.NDArray[np.float32]) -> Double:
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.rms_norm_eps) * weight

    def rotate(x: Double) -> Double:
        pairs = (x[..., : dim // 2] + 1j * x[..., dim // 2 :]) * turn
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def split(x: Double) -> Double:
        return x.reshape(count, -1, dim)

    x = weights.embedding[tokens].astype(np.float64)
    for layer in weights.layers:
        h = norm(x, layer.input_norm)
        q, k, v = rotate(split(h @ layer.q.T)), rotate(split(h @ layer.k.T)), split(h @ layer.v.T)
        heads = []
        for head in range(config.heads):
            scores = q[:, head] @ k[:, head // shared].T / np.sqrt(dim)
            scores[np.triu_indices(count, 1)] = -np.inf
            weight = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(weight / weight.sum(axis=1, keepdims=True) @ v[:, head // shared])
        x = x + np.concatenate(heads, axis=1) @ layer.o.T
        h = norm(x, layer.post_norm)
        gate = h @ layer.gate.T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer.up.T)) @ layer.down.T
    logits: Double = norm(x, weights.norm) @ weights.head.T
    return logits


def run(model: Llama, tokens: list[int], blocks: tuple[int, ...], chunk: int) -> npt.NDArray[np.float32]:
    """Logits of the last token, as the engine computes them."""
    prefill(model, tokens, blocks, chunk)
    return model.decode([DecodeRow(None, len(tokens) - 1, blocks)])[0]


def prefill(model: Llama, tokens: list[int], blocks: tuple[int, ...], chunk: int) -> None:
    for start in range(0, len(tokens), chunk):
        end = start + chunk
        model.prefill(tokens[start:end], start, blocks, ends=end >= len(tokens))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 40, 100, 300])
def test_logits_are_those_of_the_definition(model: Llama, length: int) -> None:
    tokens = prompt(length, seed=length)
    expected = reference_logits(model.config, model._weights, tokens)
    got = run(model, tokens, tuple(range(BLOCKS)), chunk=32)
    assert np.abs(got - expected[-1]).max() < 1e-3
    assert np.abs(expected[-1]).max() > 1, "the bound above means something"


@pytest.mark.parametrize("length", [1, 17, 40, 300])
def test_without_compiled_steps_the_logits_are_those_of_the_definition_too(model: Llama, length: int) -> None:
    tokens = prompt(length, seed=length)
    expected = reference_logits(model.config, model._weights, tokens)
    got = run(rebuilt(model, steps=NumpySteps()), tokens, tuple(range(BLOCKS)), chunk=512)
    assert np.abs(got - expected[-1]).max() < 1e-3


def test_prefilled_positions_give_the_same_logits_as_the_definition(model: Llama) -> None:
    tokens = prompt(50)
    hidden = model.prefill(tokens, 0, tuple(range(BLOCKS)), hidden=True)
    assert hidden is not None
    expected = reference_logits(model.config, model._weights, tokens)
    assert np.abs(model.logits(hidden) - expected).max() < 1e-3


def test_decoding_continues_what_was_prefilled(model: Llama) -> None:
    tokens = prompt(60, seed=9)
    blocks = tuple(range(BLOCKS))
    model.prefill(tokens[:20], 0, blocks, ends=True)
    expected = reference_logits(model.config, model._weights, tokens)
    logits = model.decode([DecodeRow(None, 19, blocks)])[0]
    assert np.abs(logits - expected[19]).max() < 1e-3
    for position in range(20, 60):
        logits = model.decode([DecodeRow(tokens[position], position, blocks)])[0]
        assert np.abs(logits - expected[position]).max() < 1e-3


def test_asking_for_all_positions_changes_no_bit_of_the_last_one(model: Llama) -> None:
    tokens = prompt(300, seed=3)
    blocks = tuple(range(BLOCKS))
    states = []
    for hidden in (False, True):
        model.prefill(tokens, 0, blocks, ends=True, hidden=hidden)
        states.append(model.store.state(blocks, 300).copy())
    assert np.array_equal(*states)


@pytest.mark.parametrize("length", [1, 17, 40, 130, 300])
def test_where_the_blocks_lie_changes_no_bit(model: Llama, length: int) -> None:
    tokens = prompt(length, seed=4)
    together = run(model, tokens, tuple(range(BLOCKS)), chunk=64)
    scattered = tuple(int(block) for block in np.random.default_rng(1).permutation(BLOCKS))
    assert np.array_equal(run(model, tokens, scattered, chunk=64), together)


@pytest.mark.parametrize("length", [2, 40, 130, 300, 513])
def test_the_number_of_threads_changes_no_bit(model: Llama, length: int) -> None:
    tokens = prompt(min(length, 512), seed=length)
    blocks = tuple(range(BLOCKS))
    expected = run(rebuilt(model, threads=1), tokens, blocks, chunk=512)
    for threads in (2, 5):
        assert np.array_equal(run(rebuilt(model, threads=threads), tokens, blocks, chunk=512), expected)


def test_scores_too_large_for_exp_are_handled(model: Llama) -> None:
    """Queries of a hundred times the size: the softmax is one-hot and must neither overflow nor vanish."""
    layers = tuple(dataclasses.replace(layer, q=layer.q * 100) for layer in model._weights.layers)
    sharp = dataclasses.replace(model._weights, layers=layers)
    llama = Llama(model.config, sharp, KVStore(model.store.layout, BLOCKS), 512, best_steps(), Workers(2))
    tokens = prompt(300, seed=2)
    with np.errstate(all="raise", under="ignore"):
        hidden = llama.prefill(tokens, 0, tuple(range(BLOCKS)), hidden=True)
    assert hidden is not None
    expected = reference_logits(model.config, sharp, tokens)
    # Rounding of scores in the thousands decides near ties, so only most positions are as defined.
    close = np.abs(llama.logits(hidden) - expected).max(axis=1) < 0.05
    assert close.mean() > 0.9
    assert np.isfinite(hidden).all()


@pytest.mark.parametrize("together", [True, False], ids=["rows together", "rows apart"])
def test_a_batch_changes_no_bit_of_a_row(model: Llama, together: bool) -> None:
    model = rebuilt(model, together=together)
    prompts = [prompt(length, seed=length) for length in (1, 5, 33, 20, 50, 8, 2, 17, 62, 3)]
    width = 4
    alone, rows = [], []
    for index, tokens in enumerate(prompts):
        blocks = tuple(range(index * width, (index + 1) * width))
        prefill(model, tokens, blocks, chunk=64)
        # Every other row only samples; the rest compute a token.
        token, position = (None, len(tokens) - 1) if index % 2 else (tokens[0], len(tokens))
        rows.append(DecodeRow(token, position, blocks))
        alone.append(model.decode(rows[-1:])[0])
    for size in range(1, len(rows) + 1):
        for order in (rows[:size], rows[:size][::-1]):
            logits = model.decode(order)
            for row, got in zip(order, logits, strict=True):
                assert np.array_equal(got, alone[rows.index(row)])


@given(
    st.permutations(range(9)),
    st.integers(1, 27),
    st.integers(0, 26),
)
@settings(max_examples=60)
def test_what_is_written_is_read_back_and_travels(order: list[int], total: int, cut: int) -> None:
    store = KVStore(KVLayout(layers=2, kv_heads=2, head_dim=4, block_size=3, state=5), 9)
    keys = np.arange(2 * total * 4, dtype=np.float32).reshape(2, total, 4)
    cut = min(cut, total)
    blocks = tuple(order)
    for layer in range(2):
        scaled = keys * (layer + 1)
        store.sequence(blocks, total).write(layer, 0, scaled[:, :cut], -scaled[:, :cut])
        store.sequence(blocks, total).write(layer, cut, scaled[:, cut:], -scaled[:, cut:])
    used = blocks[: -(-total // 3)]
    state = np.arange(5, dtype=np.float32)
    store.state(blocks, total)[:] = state
    other = KVStore(store.layout, 9)
    target = tuple(sorted(used))
    sent = [bytes(buffer) for buffer in store.buffers(used)]
    assert sum(map(len, sent)) == store.layout.bytes_of(len(used))
    stream = memoryview(b"".join(sent))
    for buffer in other.buffers(target):
        buffer[:] = stream[: len(buffer)]
        stream = stream[len(buffer) :]
    assert not stream
    for layer in range(2):
        for holder, at in ((store, blocks), (other, target)):
            got_keys, got_values = holder.sequence(at, total).read(layer, total)
            assert np.array_equal(got_keys, keys * (layer + 1))
            assert np.array_equal(got_values, -keys * (layer + 1))
            assert np.array_equal(holder.state(at, total), state)


def test_runs() -> None:
    assert list(runs((3, 4, 5, 9, 2, 3))) == [(3, 6), (9, 10), (2, 4)]
    assert list(runs(())) == []
