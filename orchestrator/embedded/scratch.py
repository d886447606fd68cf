"""Arrays that are used again and again, so that their memory need not be taken afresh each time."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.embedded.weights import FloatArray


class Scratch:
    """Memory by name; for one thread at a time."""

    def __init__(self) -> None:
        self._memory: dict[str, FloatArray] = {}

    def take(self, name: str, *shape: int) -> FloatArray:
        """An array of undefined content; what was taken before under the name is overwritten."""
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or len(memory) < size:
            memory = self._memory[name] = np.empty(size, dtype=np.float32)
        return memory[:size].reshape(shape)
