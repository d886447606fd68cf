"""The steps of prefill compiled for the CPU at hand. A group has as many columns as a vector has lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.elementwise import Turns
from orchestrator.embedded.kernels import OWN_SCRATCH, attend_scratch, write_kernels
from orchestrator.embedded.kv_store import SequenceKV
from orchestrator.embedded.machine_code import Module, Registers
from orchestrator.embedded.program import Interpreter, Step, bits
from orchestrator.embedded.steps import Phase, Rows
from orchestrator.embedded.weights import FloatArray
from orchestrator.embedded.workers import Workers


@dataclass(frozen=True)
class _Stored:
    """Where a sequence's keys and values are. ``planes``: addresses of the first head's, by layer; ``plane``:
    floats from head to head; ``places``, at ``address``: where each position is within one."""

    planes: list[tuple[int, int]]
    plane: int
    places: npt.NDArray[np.int64]
    address: int
    scattered: bool


class CompiledSteps:
    """See ``Steps``."""

    describe = "prefill compiled"
    queries = 64

    def __init__(self, kind: Registers) -> None:
        self._lanes = kind.lanes
        module = Module(kind.lanes)
        kernels = write_kernels(module, kind)
        numbers = {kernel.function.name: number for number, kernel in enumerate(kernels)}
        self._product, self._normalize = numbers["product"], numbers["normalize"]
        self._turn, self._gate = numbers["turn"], numbers["gate"]
        self._keep, self._attend = numbers["keep"], numbers["attend"]
        self._interpreter = Interpreter(module, kernels, OWN_SCRATCH)
        self._scratch = 1
        self._addresses: dict[int, tuple[int, FloatArray]] = {}

    def stored(self, sequence: SequenceKV) -> _Stored:
        layers = [(sequence.planes(layer, 0), sequence.planes(layer, 1)) for layer in range(sequence.layers)]
        planes = [(keys.ctypes.data, values.ctypes.data) for keys, values in layers]
        _, places, dim = layers[0][0].shape
        offsets = sequence.offsets(self._lanes)
        return _Stored(planes, places * dim, offsets, offsets.ctypes.data, sequence.scattered)

    def lanes(self, tokens: int) -> int:
        return self._lanes

    def run(self, phases: Sequence[Phase], workers: Workers) -> None:
        self._interpreter.run(phases, workers, self._scratch)
        self._addresses.clear()

    def _address(self, array: FloatArray) -> int:
        """Asking an array is slow, and few are used in many steps. Keeps the array until these are done."""
        known = self._addresses.get(id(array))
        if known is None:
            known = self._addresses[id(array)] = (array.ctypes.data, array)
        return known[0]

    def multiply(
        self, matrix: FloatArray, x: FloatArray, out: FloatArray, rows: Rows, *, adding: bool = False
    ) -> Step:
        features = matrix.shape[1]
        first, end = rows
        return (
            self._product,
            self._address(matrix) + 4 * first * features,
            self._address(x),
            self._address(out) + 4 * first * self._lanes,
            *(end - first, features, len(x)),
            *(features, features * self._lanes, len(matrix) * self._lanes, adding),
        )

    def normalize(self, x: FloatArray, weight: FloatArray, epsilon: float, out: FloatArray) -> Step:
        arrays = map(self._address, (x, weight, out))
        return (self._normalize, *arrays, *x.shape[:2], bits(epsilon))

    def turn(self, x: FloatArray, turns: Turns, scale: float) -> Step:
        groups, heads, dim, _ = x.shape
        arrays = map(self._address, (x, *turns))
        return (self._turn, *arrays, groups, heads, dim // 2, bits(scale))

    def gate(self, gate: FloatArray, up: FloatArray, rows: Rows) -> Step:
        first, end = rows
        skipped, stride = 4 * first * self._lanes, gate.shape[1] * self._lanes
        arrays = (self._address(gate) + skipped, self._address(up) + skipped)
        return (self._gate, *arrays, len(gate), end - first, stride)

    def keep(
        self, keys: FloatArray, values: FloatArray, stored: _Stored, layer: int, tokens: range
    ) -> list[Step]:
        _, heads, dim, _ = keys.shape
        place = stored.address + 8 * tokens.start
        return [
            (self._keep, self._address(x), planes, place, len(tokens), heads, dim, stored.plane)
            for x, planes in zip((keys, values), stored.planes[layer], strict=True)
        ]

    def attend(
        self,
        queries: FloatArray,
        stored: _Stored,
        layer: int,
        head: int,
        mixed: FloatArray,
        position: int,
        tokens: range,
    ) -> Step:
        _, kv_heads, heads, dim, lanes = queries.shape
        copied = position + tokens.stop if stored.scattered else 0
        self._scratch = max(self._scratch, attend_scratch(copied, heads, dim, lanes))
        keys, values = (address + 4 * head * stored.plane for address in stored.planes[layer])
        skipped = 4 * head * heads * dim * lanes
        return (
            self._attend,
            *(self._address(queries) + skipped, keys, values, self._address(mixed) + skipped, stored.address),
            *(stored.scattered, tokens.start // lanes, -(-tokens.stop // lanes)),
            *(position, tokens.stop, heads, dim, kv_heads * heads * dim * lanes),
        )
