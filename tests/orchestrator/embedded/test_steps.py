"""Steps of prefill, compiled and by numpy: equal to their definitions in float64, whatever the sizes."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.embedded.arithmetic import best_steps
from orchestrator.embedded.compiled_steps import CompiledSteps
from orchestrator.embedded.elementwise import grouped, ungrouped
from orchestrator.embedded.kv_store import KVLayout, KVStore
from orchestrator.embedded.machine_code import Registers, registers
from orchestrator.embedded.numpy_steps import NumpySteps
from orchestrator.embedded.steps import Piece, Steps
from orchestrator.embedded.weights import FloatArray
from orchestrator.embedded.workers import Workers
from tests.support.absent_modules import without_llvmlite

Double = npt.NDArray[np.float64]

COMPILED = registers() is not None
CPUINFO = Path("/proc/cpuinfo")

ALL: dict[str, Steps] = {"numpy": NumpySteps(), "best": best_steps()}
if COMPILED:
    ALL["eight lanes"] = CompiledSteps(Registers(8, 4))  # of a CPU without AVX-512; others can run it too

every = pytest.mark.parametrize("steps", ALL.values(), ids=ALL.keys())


def carry_out(steps: Steps, piece: Piece) -> None:
    steps.run([[piece]], Workers(1))


def normal(seed: int, *shape: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def columns(steps: Steps, rows: FloatArray) -> FloatArray:
    """``(tokens, features)`` as the steps take them."""
    return grouped(rows, steps.lanes(len(rows)))


def unwritten(like: FloatArray, features: int) -> FloatArray:
    """Memory for a result: every number must be written."""
    return np.full((like.shape[0], features, like.shape[2]), np.nan, dtype=np.float32)


def multiply(steps: Steps, matrix: FloatArray, x: FloatArray, rows: tuple[int, int]) -> FloatArray:
    out = unwritten(x, len(matrix))
    carry_out(steps, [steps.multiply(matrix, x, out, rows)])
    return out


@every
@given(
    rows=st.integers(1, 450),
    features=st.integers(1, 90),
    tokens=st.integers(1, 120),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_products(
    steps: Steps, rows: int, features: int, tokens: int, seed: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(first + 1, rows))
    matrix, x = normal(seed, rows, features), normal(seed + 1, tokens, features)
    out = multiply(steps, matrix, columns(steps, x), (first, end))
    expected = x.astype(np.float64) @ matrix.astype(np.float64).T
    assert np.abs(ungrouped(out, tokens) - expected)[:, first:end].max() < 1e-4
    assert np.isnan(out[:, :first]).all()
    assert np.isnan(out[:, end:]).all()
    sums = columns(steps, normal(seed + 2, tokens, rows))
    added = sums + np.nan_to_num(out)
    carry_out(steps, [steps.multiply(matrix, columns(steps, x), sums, (first, end), adding=True)])
    assert np.array_equal(sums, added)


@every
@pytest.mark.parametrize("tokens", [1, 16, 37])
def test_norms_and_gates(steps: Steps, tokens: int) -> None:
    x, more, weight = normal(1, tokens, 24), normal(2, tokens, 24) * 30, normal(3, 24)
    wide, other = columns(steps, x), columns(steps, more)
    normed = unwritten(wide, 24)
    carry_out(steps, [steps.normalize(wide, weight, 1e-5, normed)])
    double = x.astype(np.float64)
    expected = double / np.sqrt((double**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    assert np.abs(ungrouped(normed, tokens) - expected).max() < 1e-5

    carry_out(steps, [steps.gate(other, wide, (5, 20))])
    gated = more / (1 + np.exp(-more.astype(np.float64))) * x
    assert np.allclose(ungrouped(other, tokens)[:, 5:20], gated[:, 5:20], rtol=1e-5, atol=1e-30)
    kept = np.r_[0:5, 20:24]
    assert np.array_equal(ungrouped(other, tokens)[:, kept], more[:, kept])


@every
def test_gates_of_any_size(steps: Steps) -> None:
    """No overflow to NaN: a gate that is far below zero closes, one far above is the identity."""
    values = np.float32([-1e30, -1000, -104, -90, -87, -1e-30, 0, 1e-30, 87, 90, 1000, 1e30])
    gate = columns(steps, np.repeat(values[:, None], 2, axis=1))
    carry_out(steps, [steps.gate(gate, np.ones_like(gate), (0, 2))])
    double = values.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = double / (1 + np.exp(-double))
    assert np.allclose(ungrouped(gate, len(values))[:, 0], expected, rtol=1e-6, atol=1e-8)


@every
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (4, 1)])
@pytest.mark.parametrize(("position", "tokens"), [(0, 1), (0, 37), (5, 20), (16, 150), (120, 20), (0, 300)])
def test_attention(
    steps: Steps, scattered: bool, heads: int, kv_heads: int, position: int, tokens: int
) -> None:
    """Of tokens after others; keys and values of all go through the store."""
    dim, known = 12, position + tokens
    store = KVStore(KVLayout(layers=2, kv_heads=kv_heads, head_dim=dim, block_size=4, state=1), 80)
    order = np.random.default_rng(0).permutation(80) if scattered else np.arange(80)
    sequence = store.sequence([int(block) for block in order], known)
    stored = steps.stored(sequence)
    queries, keys, values = (
        normal(seed, known, count, dim) for seed, count in enumerate((heads, *[kv_heads] * 2))
    )
    for first, end in ((0, position), (position, known)):
        if first == end:
            continue
        k, v = (columns(steps, x[first:end].reshape(end - first, -1)) for x in (keys, values))
        shape = (len(k), kv_heads, dim, k.shape[2])
        carry_out(steps, steps.keep(k.reshape(shape), v.reshape(shape), stored, 1, range(first, end)))
    for kept, given_ in zip(sequence.read(1, known), (keys, values), strict=True):
        assert np.array_equal(kept, given_.swapaxes(0, 1))

    x = columns(steps, queries[position:].reshape(tokens, -1))
    groups = (len(x), kv_heads, heads // kv_heads, dim, x.shape[2])
    mixed = np.full_like(x, np.nan)
    for first in range(0, tokens, steps.queries):
        part = range(first, min(first + steps.queries, tokens))
        for head in range(kv_heads):
            step = steps.attend(x.reshape(groups), stored, 1, head, mixed.reshape(groups), position, part)
            carry_out(steps, [step])
    got = ungrouped(mixed, tokens).reshape(tokens, heads, dim)
    for head in range(heads):
        shared = head * kv_heads // heads
        scores = queries[position:, head].astype(np.float64) @ keys[:, shared].T
        scores[np.triu_indices(tokens, position + 1, known)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected = weights / weights.sum(axis=1, keepdims=True) @ values[:, shared]
        assert np.abs(got[:, head] - expected).max() < 1e-5
    beyond = ungrouped(mixed, mixed.shape[0] * mixed.shape[2])[tokens:]
    assert not beyond.any()


@pytest.mark.skipif(not COMPILED, reason="this machine computes by numpy")
def test_compiled_numbers_depend_on_neither_tile_nor_lanes_nor_the_columns_beside() -> None:
    matrix, x = normal(0, 50, 70), normal(1, 90, 70)
    wide, narrow = ALL["best"], ALL["eight lanes"]
    whole = ungrouped(multiply(wide, matrix, columns(wide, x), (0, 50)), 90)
    for steps in (wide, narrow):
        part = multiply(steps, matrix, columns(steps, x[40:57]), (7, 30))
        assert np.array_equal(ungrouped(part, 17)[:, 7:30], whole[40:57, 7:30])


@pytest.mark.skipif(not CPUINFO.exists(), reason="the CPU cannot be asked here")
def test_steps_are_compiled_where_the_cpu_can() -> None:
    flags = set(CPUINFO.read_text().split())
    assert (platform.machine() == "x86_64" and {"fma", "avx2"} <= flags) == COMPILED


def test_without_llvmlite_or_on_another_cpu_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_llvmlite(monkeypatch):
        assert isinstance(best_steps(), NumpySteps)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert isinstance(best_steps(), NumpySteps)
