"""Memory by name."""

from __future__ import annotations

from orchestrator.embedded.scratch import Scratch


def test_scratch_memory_is_used_again_and_grows() -> None:
    scratch = Scratch()
    large = scratch.take("a", 3, 4)
    large[:] = 1
    small = scratch.take("a", 2, 2)
    assert small.base is large.base
    assert scratch.take("b", 2, 2).base is not large.base
    assert scratch.take("a", 10, 4).shape == (10, 4)
