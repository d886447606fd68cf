"""Programs on several threads: every step once, phases one after the other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orchestrator.embedded.compiled_steps import CompiledSteps
from orchestrator.embedded.machine_code import registers
from orchestrator.embedded.steps import Phase
from orchestrator.embedded.workers import Workers

KIND = registers()
if KIND is None:
    pytest.skip("this machine computes by numpy", allow_module_level=True)

STEPS = CompiledSteps(KIND)
LANES = STEPS.lanes(1)
ONE = np.ones((1, 1), dtype=np.float32)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_step_is_done_once_and_phases_in_order(threads: int) -> None:
    """Each phase adds all numbers of the last one up to the right: lost, repeated or early steps show."""
    count, phases = 7, 40
    numbers = np.ones((phases + 1, count, 1, 1, LANES), dtype=np.float32)
    program: list[Phase] = [
        [
            [STEPS.multiply(ONE, before[j], after[i], (0, 1), adding=True) for j in range(count)]
            for i in range(count)
        ]
        for before, after in itertools.pairwise(numbers)
    ]
    STEPS.run(program, Workers(threads))
    expected = np.float32(1.0)
    for row in numbers[1:6]:
        expected = np.float32(1.0) + count * expected
        assert (row == expected).all()
    ratio = numbers[-1] / numbers[-2]
    assert np.allclose(ratio, count)
    assert (numbers[-1] == numbers[-1].flat[0]).all()


def test_programs_of_no_phase_and_of_few_pieces() -> None:
    workers = Workers(3)
    STEPS.run([], workers)
    x = np.zeros((1, 1, LANES), dtype=np.float32)
    one = np.ones_like(x)
    step = STEPS.multiply(ONE, one, x, (0, 1), adding=True)
    STEPS.run([[], [[step]], [[]], [[], [step]]], workers)
    assert (x == 2).all()
