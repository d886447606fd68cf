"""Block accounting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.blocks import BlockAllocator


def test_a_run_is_preferred_and_the_lowest_comes_first() -> None:
    allocator = BlockAllocator(10)
    a = allocator.allocate(3)
    b = allocator.allocate(3)
    assert (a, b) == ((0, 1, 2), (3, 4, 5))
    assert a is not None
    allocator.release(a)
    assert allocator.allocate(4) == (6, 7, 8, 9), "the gap of 3 is left for something that fits"
    assert allocator.allocate(3) == (0, 1, 2)


def test_scattered_blocks_are_used_when_no_run_is_free() -> None:
    allocator = BlockAllocator(6)
    pairs = [allocator.allocate(2) for _ in range(3)]
    assert pairs[0] is not None
    assert pairs[2] is not None
    allocator.release(pairs[0])
    allocator.release(pairs[2])
    assert allocator.allocate(3) == (0, 1, 4)
    assert allocator.allocate(2) is None
    assert allocator.used == 5


def test_releasing_twice_or_outside_is_a_bug() -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(2)
    allocator.release((0,))
    for wrong in ((0,), (3,), (4,), (-1,)):
        with pytest.raises(ValueError, match="block"):
            allocator.release(wrong)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_no_block_is_ever_owned_twice_or_lost(actions: list[tuple[bool, int]]) -> None:
    allocator = BlockAllocator(12)
    owned: list[tuple[int, ...]] = []
    for take, number in actions:
        if take:
            blocks = allocator.allocate(number)
            assert (blocks is None) == (number > 12 - sum(map(len, owned)))
            owned += [blocks] if blocks is not None else []
        elif owned:
            allocator.release(owned.pop(number % len(owned)))
        held = [block for blocks in owned for block in blocks]
        assert len(set(held)) == len(held) == allocator.used
        assert all(list(blocks) == sorted(blocks) for blocks in owned)
    for blocks in owned:
        allocator.release(blocks)
    assert allocator.allocate(12) == tuple(range(12))
