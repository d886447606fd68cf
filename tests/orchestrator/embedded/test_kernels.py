"""Products: equal to the definition, and a column's bits depend on nothing but the column."""

from __future__ import annotations

import builtins
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.embedded.kernels import (
    BlasProducts,
    CompiledProducts,
    Products,
    _compile,
    best_products,
)
from orchestrator.embedded.scratch import Scratch
from orchestrator.embedded.weights import FloatArray

COMPILED = isinstance(best_products(), CompiledProducts)

CPUINFO = Path("/proc/cpuinfo")

ALL: list[Products] = [BlasProducts(), best_products()]
if COMPILED:
    ALL.append(CompiledProducts(8, 6, _compile))  # what a CPU without AVX-512 gets; others can run it too


def multiply(products: Products, matrix: FloatArray, x: FloatArray) -> FloatArray:
    """Out memory starts as NaN: every number must be written."""
    out = np.full((len(matrix), x.shape[1]), np.nan, dtype=np.float32)
    products.multiply(matrix, products.arranged(x, Scratch()), out)
    return out


@pytest.mark.parametrize("products", ALL, ids=lambda products: products.describe)
@given(
    rows=st.integers(1, 60), features=st.integers(1, 90), groups=st.integers(1, 7), seed=st.integers(0, 1000)
)
@settings(max_examples=40, deadline=None)
def test_a_product_is_the_definition(
    products: Products, rows: int, features: int, groups: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    matrix = draw.standard_normal((rows, features), dtype=np.float32)
    x = draw.standard_normal((features, groups * products.columns), dtype=np.float32)
    expected = matrix.astype(np.float64) @ x.astype(np.float64)
    assert np.abs(multiply(products, matrix, x) - expected).max() < 1e-4


@pytest.mark.skipif(not CPUINFO.exists(), reason="the CPU cannot be asked here")
def test_products_are_compiled_where_the_cpu_can() -> None:
    flags = set(CPUINFO.read_text().split())
    assert (platform.machine() == "x86_64" and {"fma", "avx2"} <= flags) == COMPILED


@pytest.mark.skipif(not COMPILED, reason="this machine multiplies by BLAS")
def test_a_column_does_not_depend_on_the_others_nor_a_row_on_its_tile() -> None:
    products = best_products()
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((50, 70), dtype=np.float32)
    x = draw.standard_normal((70, 5 * products.columns), dtype=np.float32)
    whole = multiply(products, matrix, x)
    narrow = np.ascontiguousarray(x[:, products.columns : 2 * products.columns])
    assert np.array_equal(
        multiply(products, matrix, narrow), whole[:, products.columns : 2 * products.columns]
    )
    assert np.array_equal(multiply(products, matrix[7:30], x), whole[7:30])


def test_without_llvmlite_or_on_another_cpu_blas_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("llvmlite"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        assert isinstance(best_products(), BlasProducts)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert isinstance(best_products(), BlasProducts)
