"""Functions over vectors of floats, written in LLVM's language and compiled for the CPU at hand.

A ``Writer`` puts one function together. No optimiser runs over it, only LLVM's code generator: what it says
is what is computed, in that order, and compiling takes a fraction of a second.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Value = Any
"""A value of the function being written; llvmlite has no types."""

_ENGINES: list[object] = []
"""Own the machine code, which lives as long as the process."""


@dataclass(frozen=True)
class Registers:
    """Floats of a vector register, and how many rows by three columns of them a CPU can keep sums of."""

    lanes: int
    rows: int


def registers() -> Registers | None:
    """Those of this CPU; None if it lacks fused multiply-adds, or llvmlite is not installed."""
    if platform.machine() != "x86_64" or os.name != "posix":
        return None
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return Registers(16, 8)
    if features.get("fma") and features.get("avx2"):
        return Registers(8, 4)
    return None


class Module:
    """Functions that may call each other."""

    def __init__(self, lanes: int) -> None:
        from llvmlite import ir

        self.lanes = lanes
        self.ir = ir.Module(name=f"lanes{lanes}")
        self.integer, self.float, self.pointer = ir.IntType(64), ir.FloatType(), ir.PointerType()
        self.vector = ir.VectorType(self.float, lanes)
        self.integers = ir.VectorType(ir.IntType(32), lanes)
        self._signatures: dict[str, tuple[int, int, int]] = {}

    def function(self, name: str, pointers: int, integers: int, floats: int = 0) -> Writer:
        """A new function ``void name(pointers…, integers…, floats…)`` of memory that does not overlap."""
        from llvmlite import ir

        kinds = [self.pointer] * pointers + [self.integer] * integers + [self.float] * floats
        function = ir.Function(self.ir, ir.FunctionType(ir.VoidType(), kinds), name)
        for argument in function.args[:pointers]:
            argument.add_attribute("noalias")
        self._signatures[name] = (pointers, integers, floats)
        return Writer(self, function)

    def external(self, name: str, result: Value, *arguments: Value) -> Value:
        """A function of LLVM or of the C library."""
        from llvmlite import ir

        known = self.ir.globals.get(name)
        return known or ir.Function(self.ir, ir.FunctionType(result, arguments), name)

    def signature(self, name: str) -> tuple[int, int, int]:
        """How many pointers, integers and floats the function takes."""
        return self._signatures[name]

    def compiled(self, names: Sequence[str]) -> dict[str, Callable[..., None]]:
        """The functions of these names. Pointers are passed as addresses."""
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # LLVM avoids the widest vectors unless it is told not to.
        features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
        module = llvm.parse_assembly(str(self.ir))
        module.triple = llvm.get_default_triple()
        module.data_layout = str(machine.target_data)
        module.verify()
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _ENGINES.append(engine)
        functions: dict[str, Callable[..., None]] = {}
        for name in names:
            pointers, integers, floats = self._signatures[name]
            kinds = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * integers + [ctypes.c_float] * floats
            functions[name] = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))
        return functions


class Writer:
    """Writes one function, from its first instruction to ``end``. Offsets and strides are in floats."""

    def __init__(self, module: Module, function: Value) -> None:
        from llvmlite import ir

        self.module = module
        self.function = function
        self.arguments: list[Value] = list(function.args)
        self.lanes = module.lanes
        self._ir = ir
        self.build = ir.IRBuilder(function.append_basic_block())

    def number(self, value: int) -> Value:
        return self._ir.Constant(self.module.integer, value)

    def all(self, value: float | Value) -> Value:
        """A vector with this number in every lane."""
        if isinstance(value, float):
            return self._ir.Constant(self.module.vector, [value] * self.lanes)
        return self._spread(value, self.module.vector)

    def all_integers(self, value: int | Value) -> Value:
        """The same of 32-bit integers; a 64-bit value is cut."""
        if isinstance(value, int):
            return self._ir.Constant(self.module.integers, [value] * self.lanes)
        return self._spread(self.build.trunc(value, self.module.integers.element), self.module.integers)

    def _spread(self, value: Value, kind: Value) -> Value:
        low = self.build.insert_element(self._ir.Constant(kind, self._ir.Undefined), value, self._index(0))
        order = self._ir.Constant(self.module.integers, [0] * self.lanes)
        return self.build.shuffle_vector(low, low, order)

    def _index(self, value: int) -> Value:
        return self._ir.Constant(self.module.integers.element, value)

    def lane_numbers(self) -> Value:
        """``0, 1, 2…``"""
        return self._ir.Constant(self.module.integers, list(range(self.lanes)))

    def at(self, pointer: Value, *offsets: Value) -> Value:
        """``pointer`` moved on by the sum of the offsets."""
        total = offsets[0]
        for offset in offsets[1:]:
            total = self.build.add(total, offset)
        return self.build.gep(pointer, [total], source_etype=self.module.float)

    def times(self, *factors: Value | int) -> Value:
        """Product of integers."""
        values = [self.number(factor) if isinstance(factor, int) else factor for factor in factors]
        total = values[0]
        for factor in values[1:]:
            total = self.build.mul(total, factor)
        return total

    def load(self, pointer: Value) -> Value:
        return self.build.load(pointer, align=4, typ=self.module.vector)

    def load_one(self, pointer: Value) -> Value:
        """The float there, in every lane."""
        return self.all(self.build.load(pointer, align=4, typ=self.module.float))

    def store(self, value: Value, pointer: Value) -> None:
        self.build.store(value, pointer, align=4)

    def integer_at(self, pointer: Value, index: Value | int) -> Value:
        """Number ``index`` of an array of integers."""
        return self.build.load(self.integers_at(pointer, index), align=8, typ=self.module.integer)

    def integers_at(self, pointer: Value, index: Value | int) -> Value:
        """An array of integers from number ``index`` on."""
        index = self.number(index) if isinstance(index, int) else index
        return self.build.gep(pointer, [index], source_etype=self.module.integer)

    def scatter(self, value: Value, pointer: Value, offsets: Value, count: Value) -> None:
        """Store the first ``count`` lanes, each at an offset of its own, the integers at ``offsets``."""
        b, ir, lanes = self.build, self._ir, self.lanes
        wide = b.load(offsets, align=8, typ=ir.VectorType(self.module.integer, lanes))
        places = ir.VectorType(self.module.pointer, lanes)
        targets = b.gep(pointer, [wide], source_etype=self.module.float)
        targets.type = places
        there = b.icmp_signed("<", self.lane_numbers(), self.all_integers(count))
        name = f"llvm.masked.scatter.v{lanes}f32.v{lanes}p0"
        kinds = (self.module.vector, places, ir.IntType(32), there.type)
        scatter = self.module.external(name, ir.VoidType(), *kinds)
        b.call(scatter, [value, targets, self._index(4), there])

    def prefetch(self, pointer: Value) -> None:
        """Have the line there in the first-level cache soon, to read."""
        nothing, flag = self._ir.VoidType(), self._ir.IntType(32)
        fetch = self.module.external("llvm.prefetch.p0", nothing, self.module.pointer, flag, flag, flag)
        self.build.call(fetch, [pointer, self._index(0), self._index(3), self._index(1)])

    def unary(self, name: str, x: Value) -> Value:
        """LLVM's ``sqrt`` or ``rint`` of each lane."""
        return self._intrinsic(name, x)

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """``a * b + c``, rounded once."""
        return self._intrinsic("fma", a, b, c)

    def _intrinsic(self, name: str, *operands: Value) -> Value:
        kinds = [self.module.vector] * (1 + len(operands))
        return self.build.call(self.module.external(f"llvm.{name}.v{self.lanes}f32", *kinds), operands)

    def larger(self, a: Value, b: Value) -> Value:
        return self.build.select(self.build.fcmp_ordered(">", a, b), a, b)

    def smaller(self, a: Value, b: Value) -> Value:
        return self.build.select(self.build.fcmp_ordered("<", a, b), a, b)

    def least(self, a: Value, b: Value) -> Value:
        """Of two integers."""
        return self.build.select(self.build.icmp_signed("<", a, b), a, b)

    def call(self, writer: Writer, *arguments: Value) -> None:
        self.build.call(writer.function, arguments)

    def repeat(
        self,
        count: Value,
        body: Callable[[Value, list[Value]], Sequence[Value] | None],
        carried: Sequence[Value] = (),
        *,
        maybe_none: bool = False,
    ) -> list[Value]:
        """``body(index, values)`` for ``index`` 0…count-1, which gives the values for the next; the last ones
        are returned. ``count`` must be at least 1, unless ``maybe_none``."""
        if maybe_none:
            assert not carried
            with self.build.if_then(self.build.icmp_signed(">", count, self.number(0))):
                self.repeat(count, body)
            return []
        before, again = self.build.block, self.build.append_basic_block()
        self.build.branch(again)
        self.build.position_at_end(again)
        index = self.build.phi(self.module.integer)
        index.add_incoming(self.number(0), before)
        values = []
        for value in carried:
            values.append(self.build.phi(value.type))
            values[-1].add_incoming(value, before)
        results = list(body(index, values) or ())
        following = self.build.add(index, self.number(1))
        last, after = self.build.block, self.build.append_basic_block()
        index.add_incoming(following, last)
        for value, result in zip(values, results, strict=True):
            value.add_incoming(result, last)
        self.build.cbranch(self.build.icmp_signed("<", following, count), again, after)
        self.build.position_at_end(after)
        return results

    def repeat_from(
        self,
        first: Value,
        end: Value,
        body: Callable[[Value, list[Value]], Sequence[Value]],
        carried: Sequence[Value],
    ) -> list[Value]:
        """``repeat`` for ``index`` ``first…end-1``, which may be none: the values are then ``carried``."""
        before = self.build.block
        with self.build.if_then(self.less(first, end)):
            count = self.build.sub(end, first)
            results = self.repeat(count, lambda i, v: body(self.build.add(first, i), v), carried)
            inside = self.build.block
        values = []
        for value, result in zip(carried, results, strict=True):
            values.append(self.build.phi(value.type))
            values[-1].add_incoming(value, before)
            values[-1].add_incoming(result, inside)
        return values

    def repeat_while(
        self, first: Value, condition: Callable[[Value], Value], body: Callable[[Value], Value]
    ) -> None:
        """``body`` with ``first`` and then with what it gave before, as long as ``condition`` holds of it."""
        before, again = self.build.block, self.build.append_basic_block()
        self.build.branch(again)
        self.build.position_at_end(again)
        value = self.build.phi(first.type)
        value.add_incoming(first, before)
        inside, after = self.build.append_basic_block(), self.build.append_basic_block()
        self.build.cbranch(condition(value), inside, after)
        self.build.position_at_end(inside)
        value.add_incoming(body(value), self.build.block)
        self.build.branch(again)
        self.build.position_at_end(after)

    def less(self, a: Value, b: Value) -> Value:
        """Of two integers."""
        return self.build.icmp_signed("<", a, b)

    def count_up(self, counter: Value) -> Value:
        """Add one to a counter that threads share; what it was before."""
        return self.build.atomic_rmw("add", counter, self.number(1), "acq_rel")

    def wait_for(self, counter: Value, target: Value, pauses: int) -> None:
        """Until the counter has come to ``target``; after so many pauses others may run between two looks."""
        nothing, flag = self._ir.VoidType(), self._ir.IntType(32)
        pause = self.module.external("llvm.x86.sse2.pause", nothing)
        let_others_run = self.module.external("sched_yield", flag)

        def look(_: Value) -> Value:
            there = self.build.load_atomic(counter, "acquire", 8, typ=self.module.integer)
            return self.less(there, target)

        def rest(waited: Value) -> Value:
            self.build.call(pause, [])
            with self.build.if_then(self.less(self.number(pauses), waited)):
                self.build.call(let_others_run, [])
            return self.build.add(waited, self.number(1))

        self.repeat_while(self.number(0), look, rest)

    def float_of_bits(self, bits: Value) -> Value:
        return self.build.bitcast(self.build.trunc(bits, self._ir.IntType(32)), self.module.float)

    def end(self) -> None:
        self.build.ret_void()
