"""Products of weight matrices with activations, for prefill: compiled for the CPU at hand, or by BLAS.

Theory of operation. A BLAS rearranges both factors before it multiplies, which for a few dozen columns costs
as much as the multiplication, and it cannot be told that the weights are the same every time. The compiled
kernel reads the weights where they lie: a tile of rows times a panel of columns stays in registers while the
sum runs over the features; only the activations are rearranged, into panels. The next tile's weights are
fetched ahead. A number is summed in the order of the features, by fused multiply-adds, whatever the tile and
the panel.

The kernel is written in LLVM's intermediate language and compiled in a few hundredths of a second. It needs
``llvmlite`` and an x86 CPU with fused multiply-adds; without either, BLAS multiplies.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from orchestrator.embedded.scratch import Scratch
from orchestrator.embedded.weights import FloatArray

LINE_FLOATS = 16
"""Floats of a cache line."""


class Products(Protocol):
    """``columns``: activations have a multiple of so many columns. ``describe``: equal when the bits are."""

    columns: int
    describe: str

    def arranged(self, x: FloatArray, scratch: Scratch) -> FloatArray:
        """``x (features, columns)`` in the form that ``multiply`` takes; valid until the next call."""

    def multiply(self, matrix: FloatArray, arranged: FloatArray, out: FloatArray) -> None:
        """``matrix @ x`` into ``out``. Both have contiguous rows."""


class BlasProducts:
    columns = 8  # an odd number makes OpenBLAS a sixth slower
    describe = "BLAS products"

    def arranged(self, x: FloatArray, scratch: Scratch) -> FloatArray:
        return x

    def multiply(self, matrix: FloatArray, arranged: FloatArray, out: FloatArray) -> None:
        np.matmul(matrix, arranged, out=out)


@dataclass(frozen=True)
class Tile:
    """What is summed in registers: ``rows`` of the matrix by ``vectors`` of ``lanes`` columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        return f"tile_{self.rows}x{self.columns}"


Kernel = Callable[[int, int, int, int, int, int, int, int], None]
"""Address of matrix, panels and out; rows, features, panels; floats from row to row of matrix and out."""


class CompiledProducts:
    """``tiles``: of 2 and of 1 vectors, each with as many rows as fit the registers and with one."""

    def __init__(self, lanes: int, rows: int, compiled: Callable[[list[Tile]], dict[Tile, Kernel]]) -> None:
        self.columns = lanes
        self.describe = f"compiled products, {lanes} lanes"
        self._wide = [Tile(rows, 2, lanes), Tile(1, 2, lanes)]
        self._narrow = [Tile(rows, 1, lanes), Tile(1, 1, lanes)]
        self._kernels = compiled(self._wide + self._narrow)

    def arranged(self, x: FloatArray, scratch: Scratch) -> FloatArray:
        """``(features * columns,)``: panels of two vectors, and one of one vector if columns are left."""
        features, width = x.shape
        panel = 2 * self.columns
        wide = width // panel * panel
        flat = scratch.take("panels", features * width)
        panels = flat[: features * wide].reshape(-1, features, panel)
        np.copyto(panels, x[:, :wide].reshape(features, -1, panel).transpose(1, 0, 2))
        flat[features * wide :].reshape(features, -1)[:] = x[:, wide:]
        return flat

    def multiply(self, matrix: FloatArray, arranged: FloatArray, out: FloatArray) -> None:
        features, width = matrix.shape[1], out.shape[1]
        panel = 2 * self.columns
        panels = width // panel
        source, target = arranged.ctypes.data, out.ctypes.data
        if panels:
            self._run(self._wide, matrix, source, target, panels, width)
        if width % panel:
            done = panels * panel
            self._run(self._narrow, matrix, source + 4 * done * features, target + 4 * done, 1, width)

    def _run(
        self, tiles: list[Tile], matrix: FloatArray, source: int, target: int, panels: int, width: int
    ) -> None:
        rows, features = matrix.shape
        address, done = matrix.ctypes.data, 0
        for tile in tiles:
            count = (rows - done) // tile.rows * tile.rows
            if count:
                self._kernels[tile](
                    address + 4 * done * features,
                    source,
                    target + 4 * done * width,
                    *(count, features, panels, features, width),
                )
            done += count


def best_products() -> Products:
    """Compiled if that is possible here."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return BlasProducts()
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return BlasProducts()
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return CompiledProducts(16, 12, _compile)
    if features.get("fma") and features.get("avx2"):
        return CompiledProducts(8, 6, _compile)
    return BlasProducts()


def _compile(tiles: list[Tile]) -> dict[Tile, Kernel]:
    """Machine code for this CPU, which lives as long as the process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # LLVM avoids the widest vectors unless it is told not to.
    features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
    module = llvm.parse_assembly("\n".join([_declarations(tiles[0].lanes), *map(source_of, tiles)]))
    module.triple = llvm.get_default_triple()
    module.data_layout = str(machine.target_data)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 5)
    return {tile: signature(engine.get_function_address(tile.name)) for tile in tiles}


_ENGINES: list[object] = []
"""Own the machine code."""


def _declarations(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    return (
        f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})\n"
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    )


def source_of(tile: Tile) -> str:
    """The kernel of a tile shape: panels, in them tiles of rows, in them features.

    Unrolled by tile: every sum has a name, so that it is given a register.
    """
    vector, width = f"<{tile.lanes} x float>", tile.columns
    rows, sums = range(tile.rows), [(i, j) for i in range(tile.rows) for j in range(tile.vectors)]
    lines = [
        f"define void @{tile.name}(ptr noalias readonly %matrix, ptr noalias readonly %panels, "
        "ptr noalias %out, i64 %rows, i64 %features, i64 %count, i64 %stride, i64 %out_stride) {",
        "entry:",
        f"  %panel_floats = mul i64 %features, {width}",
        "  br label %panel",
        "panel:",
        "  %p = phi i64 [0, %entry], [%p_next, %panel_end]",
        "  %panel_at = mul i64 %p, %panel_floats",
        "  %x = getelementptr float, ptr %panels, i64 %panel_at",
        f"  %column = mul i64 %p, {width}",
        "  %out_panel = getelementptr float, ptr %out, i64 %column",
        "  br label %tile",
        "tile:",
        "  %r = phi i64 [0, %panel], [%r_next, %store]",
        "  %row_at = mul i64 %r, %stride",
        "  %w0 = getelementptr float, ptr %matrix, i64 %row_at",
        *(f"  %w{i} = getelementptr float, ptr %w{i - 1}, i64 %stride" for i in rows[1:]),
        "  br label %feature",
        "feature:",
        "  %k = phi i64 [0, %tile], [%k_next, %feature]",
        *(f"  %s{i}_{j} = phi {vector} [zeroinitializer, %tile], [%t{i}_{j}, %feature]" for i, j in sums),
        # One line of a row of the next tile with each step: of all rows in as many steps as a line is long.
        f"  %ahead = and i64 %k, {LINE_FLOATS - 1}",
        f"  %ahead_row = add i64 %ahead, {tile.rows}",
        f"  %ahead_column = and i64 %k, {-LINE_FLOATS}",
        "  %ahead_rows = mul i64 %ahead_row, %stride",
        "  %ahead_at = add i64 %ahead_rows, %ahead_column",
        "  %line = getelementptr float, ptr %w0, i64 %ahead_at",
        "  call void @llvm.prefetch.p0(ptr %line, i32 0, i32 3, i32 1)",
        f"  %k_at = mul i64 %k, {width}",
    ]
    for j in range(tile.vectors):
        lines += [
            f"  %x_at{j} = add i64 %k_at, {j * tile.lanes}",
            f"  %x_ptr{j} = getelementptr float, ptr %x, i64 %x_at{j}",
            f"  %x{j} = load {vector}, ptr %x_ptr{j}, align 4",
        ]
    for i in rows:
        lines += [
            f"  %w_ptr{i} = getelementptr float, ptr %w{i}, i64 %k",
            f"  %w_one{i} = load float, ptr %w_ptr{i}, align 4",
            f"  %w_low{i} = insertelement {vector} poison, float %w_one{i}, i32 0",
            f"  %w_all{i} = shufflevector {vector} %w_low{i}, {vector} poison, "
            f"<{tile.lanes} x i32> zeroinitializer",
        ]
    call = f"call {vector} @llvm.fma.v{tile.lanes}f32"
    lines += [
        f"  %t{i}_{j} = {call}({vector} %w_all{i}, {vector} %x{j}, {vector} %s{i}_{j})" for i, j in sums
    ]
    lines += [
        "  %k_next = add i64 %k, 1",
        "  %more_features = icmp ult i64 %k_next, %features",
        "  br i1 %more_features, label %feature, label %store",
        "store:",
        "  %out_at = mul i64 %r, %out_stride",
        "  %o0 = getelementptr float, ptr %out_panel, i64 %out_at",
        *(f"  %o{i} = getelementptr float, ptr %o{i - 1}, i64 %out_stride" for i in rows[1:]),
    ]
    for i, j in sums:
        lines += [
            f"  %o_ptr{i}_{j} = getelementptr float, ptr %o{i}, i64 {j * tile.lanes}",
            f"  store {vector} %t{i}_{j}, ptr %o_ptr{i}_{j}, align 4",
        ]
    lines += [
        f"  %r_next = add i64 %r, {tile.rows}",
        "  %more_rows = icmp ult i64 %r_next, %rows",
        "  br i1 %more_rows, label %tile, label %panel_end",
        "panel_end:",
        "  %p_next = add i64 %p, 1",
        "  %more_panels = icmp ult i64 %p_next, %count",
        "  br i1 %more_panels, label %panel, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)
