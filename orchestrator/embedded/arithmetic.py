"""Which steps this machine can compute with."""

from __future__ import annotations

from orchestrator.embedded.compiled_steps import CompiledSteps
from orchestrator.embedded.machine_code import registers
from orchestrator.embedded.numpy_steps import NumpySteps
from orchestrator.embedded.steps import Steps


def best_steps() -> Steps:
    """Compiled if that is possible here."""
    kind = registers()
    return NumpySteps() if kind is None else CompiledSteps(kind)
