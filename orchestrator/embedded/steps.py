"""The steps that prefill is made of, and what carries them out.

Activations of consecutive tokens lie in groups, tokens as columns: ``(groups, features, lanes)``. Calling a
step computes nothing: it says what is to be computed, in the memory that it was given, when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from orchestrator.embedded.elementwise import Turns
from orchestrator.embedded.kv_store import SequenceKV
from orchestrator.embedded.weights import FloatArray
from orchestrator.embedded.workers import Workers

Step = Any
Stored = Any
Rows = tuple[int, int]
"""First, and end."""
Piece = Sequence[Step]
"""Steps to be done in this order, by one thread."""
Phase = Sequence[Piece]
"""Pieces that may be done at the same time."""


class Steps(Protocol):
    """``describe``: equal when the bits are. ``queries``: tokens that attend at a time, whole groups."""

    describe: str
    queries: int

    def stored(self, sequence: SequenceKV) -> Stored:
        """The sequence's keys and values as other steps take them."""

    def lanes(self, tokens: int) -> int:
        """Columns of a group, for so many tokens."""

    def multiply(
        self, matrix: FloatArray, x: FloatArray, out: FloatArray, rows: Rows, *, adding: bool = False
    ) -> Step:
        """These rows of ``matrix @ x`` of each group, in place of those of ``out`` or added to them."""

    def normalize(self, x: FloatArray, weight: FloatArray, epsilon: float, out: FloatArray) -> Step:
        """RMSNorm of every column."""

    def turn(self, x: FloatArray, turns: Turns, scale: float) -> Step:
        """Rotary embedding of ``x (groups, heads, dim, lanes)`` in place, times ``scale``."""

    def gate(self, gate: FloatArray, up: FloatArray, rows: Rows) -> Step:
        """``silu(gate) * up`` of these rows of each group, in place of ``gate``."""

    def keep(self, keys: FloatArray, values: FloatArray, stored: Stored, layer: int, tokens: range) -> Piece:
        """Store ``keys`` and ``values (groups, heads, dim, lanes)`` of tokens at these positions."""

    def attend(
        self,
        queries: FloatArray,
        stored: Stored,
        layer: int,
        head: int,
        mixed: FloatArray,
        position: int,
        tokens: range,
    ) -> Step:
        """Attention of a part of a slice's ``tokens`` that starts a group and ends one or the slice, which
        itself starts at ``position``, to the stored keys and values of ``head``, one of ``kv_heads``.
        ``queries`` and ``mixed (groups, kv_heads, heads, dim, lanes)``. Columns beyond the tokens become
        zero."""

    def run(self, phases: Sequence[Phase], workers: Workers) -> None:
        """Carry out phase after phase."""
