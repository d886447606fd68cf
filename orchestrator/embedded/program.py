"""Programs of compiled steps, which several threads carry out together outside of the interpreter.

Theory of operation. A program has phases, a phase pieces, a piece steps. Whoever is free takes the next piece
of a phase; when none is left to take, it waits until all of the phase are done, and goes on to the next. A
forward pass has hundreds of phases of well under a millisecond: handing each to sleeping threads, or taking
turns at the interpreter's lock, costs more than some of them compute. Waiting therefore looks again and again
for a moment, then lets other processes run between two looks.

In memory a step is integers: how many follow, the number of its kernel, the kernel's arguments. Pieces are
offsets into these, phases offsets into the pieces. Each phase has two counters, pieces taken and pieces done,
in cache lines of their own.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import numpy as np

from orchestrator.embedded.machine_code import Module, Value, Writer
from orchestrator.embedded.scratch import Scratch
from orchestrator.embedded.workers import Workers

Step = tuple[int, ...]
Phase = Sequence[Sequence[Step]]
"""Pieces, each a sequence of steps."""

LINE_INTEGERS = 8
"""Integers of a cache line."""

PAUSES = 500
"""How often a waiting thread looks again before it lets others run: some ten microseconds."""


@functools.cache
def bits(number: float) -> int:
    """A float among a step's integers."""
    return int(struct.unpack("<i", struct.pack("<f", number))[0])


class Interpreter:
    """Carries programs out. Step ``(k, …)`` calls the k-th of ``kernels`` with the integers that follow: its
    pointers, integers and floats (as ``bits``). A kernel of ``own_scratch`` gets memory of the thread before
    them, as its first pointer."""

    def __init__(self, module: Module, kernels: Sequence[Writer], own_scratch: frozenset[str]) -> None:
        _write_work(module, kernels, own_scratch)
        self._work = module.compiled(["work"])["work"]
        self._scratch: list[Scratch] = []

    def run(self, phases: Sequence[Phase], workers: Workers, scratch: int) -> None:
        """``scratch``: floats that each thread gets for itself."""
        code: list[int] = []
        pieces: list[int] = []
        first_pieces: list[int] = []
        for phase in phases:
            first_pieces.append(len(pieces))
            for piece in phase:
                pieces.append(len(code))
                for step in piece:
                    code.append(len(step))
                    code += step
        first_pieces.append(len(pieces))
        pieces.append(len(code))
        counters = np.zeros(2 * len(phases) * LINE_INTEGERS, dtype=np.int64)
        arrays = [np.array(numbers, dtype=np.int64) for numbers in (code, pieces, first_pieces)]
        addresses = [array.ctypes.data for array in (*arrays, counters)]
        while len(self._scratch) < workers.threads:
            self._scratch.append(Scratch())
        workers.run(
            [
                functools.partial(
                    self._work, *addresses, own.take("scratch", scratch).ctypes.data, len(phases)
                )
                for own in self._scratch[: workers.threads]
            ]
        )


def _write_work(module: Module, kernels: Sequence[Writer], own_scratch: frozenset[str]) -> None:
    """``work(code, pieces, phases, counters, scratch, count)``: what one thread does."""
    w = module.function("work", 5, 1)
    code, pieces, phases, counters, scratch, count = w.arguments
    one = w.number(1)

    def phase(number: Value, _: list[Value]) -> None:
        first = w.integer_at(phases, number)
        end = w.integer_at(phases, w.build.add(number, one))
        taken = w.integers_at(counters, w.times(number, 2 * LINE_INTEGERS))
        done = w.integers_at(taken, LINE_INTEGERS)
        here = w.build.sub(end, first)

        def take() -> Value:
            return w.build.add(first, w.count_up(taken))

        def piece(index: Value) -> Value:
            last = w.integer_at(pieces, w.build.add(index, one))

            def step(at: Value) -> Value:
                place = w.integers_at(code, w.build.add(at, one))
                _write_calls(w, place, kernels, own_scratch, scratch)
                return w.build.add(at, w.build.add(w.integer_at(code, at), one))

            w.repeat_while(w.integer_at(pieces, index), lambda at: w.less(at, last), step)
            w.count_up(done)
            return take()

        w.repeat_while(take(), lambda index: w.less(index, end), piece)
        w.wait_for(done, here, PAUSES)

    w.repeat(count, phase, maybe_none=True)
    w.end()


def _write_calls(
    w: Writer, place: Value, kernels: Sequence[Writer], own_scratch: frozenset[str], scratch: Value
) -> None:
    """Call the kernel of the step at ``place``."""
    after = w.build.append_basic_block()
    choice = w.build.switch(w.integer_at(place, 0), after)
    for number, kernel in enumerate(kernels):
        block = w.build.append_basic_block()
        choice.add_case(w.number(number), block)
        w.build.position_at_end(block)
        pointers, integers, floats = w.module.signature(kernel.function.name)
        own = [scratch] if kernel.function.name in own_scratch else []
        pointers -= len(own)
        values = [w.integer_at(place, 1 + index) for index in range(pointers + integers + floats)]
        for index in range(pointers):
            values[index] = w.build.inttoptr(values[index], w.module.pointer)
        for index in range(pointers + integers, len(values)):
            values[index] = w.float_of_bits(values[index])
        w.call(kernel, *own, *values)
        w.build.branch(after)
    w.build.position_at_end(after)
