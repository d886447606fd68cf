"""Pieces of memory for NIXL: copied piece by piece they are a prompt's bytes, wherever its blocks lie."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.kv_store import KVLayout, KVStore, Place
from orchestrator.embedded.nixl_regions import common_runs, paired_pieces

LAYOUT = KVLayout(layers=2, kv_heads=3, head_dim=4, block_size=5, state=7)


def filled(blocks: int, seed: int) -> KVStore:
    store = KVStore(LAYOUT, blocks)
    draw = np.random.default_rng(seed)
    for buffer in store.buffers(range(blocks)):
        np.frombuffer(buffer, np.float32)[:] = draw.random(len(buffer) // 4, np.float32)
    for block in range(blocks):
        store.state([block], 1)[:] = draw.random(LAYOUT.state, np.float32)
    return store


def content(store: KVStore, blocks: list[int]) -> bytes:
    return b"".join(bytes(buffer) for buffer in store.buffers(blocks))


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_copying_the_pieces_copies_the_prompt_and_nothing_else(count: int, draw: random.Random) -> None:
    here, there = filled(6, 1), filled(9, 2)
    mine, theirs = draw.sample(range(6), count), draw.sample(range(9), count)
    others = [block for block in range(6) if block not in mine]
    before = content(here, others) if others else b""
    to, source = paired_pieces(LAYOUT, here.place(), mine, there.place(), theirs)
    assert (to[:, 1] == source[:, 1]).all()
    assert int(to[:, 1].sum()) == LAYOUT.bytes_of(count)
    for (target, size, _), (origin, _, _) in zip(to.tolist(), source.tolist(), strict=True):
        ctypes.memmove(target, origin, size)
    assert content(here, mine) == content(there, theirs)
    assert others == [] or content(here, others) == before


def test_every_piece_is_in_the_regions_that_are_registered() -> None:
    store = filled(4, 1)
    pieces, _ = paired_pieces(LAYOUT, store.place(), [3, 0], store.place(), [1, 2])
    regions = store.place().regions(LAYOUT)
    for address, size, _ in pieces.tolist():
        assert any(start <= address and address + size <= start + length for start, length in regions)


@pytest.mark.parametrize(
    ("first", "second", "runs"),
    [
        ([4], [9], [(4, 9, 1)]),
        ([4, 5, 6], [0, 1, 2], [(4, 0, 3)]),
        ([4, 5, 6], [0, 1, 7], [(4, 0, 2), (6, 7, 1)]),
        ([4, 6, 7], [0, 1, 2], [(4, 0, 1), (6, 1, 2)]),
        ([3, 2, 1], [1, 2, 3], [(3, 1, 1), (2, 2, 1), (1, 3, 1)]),
    ],
)
def test_runs_ascend_on_both_sides(
    first: list[int], second: list[int], runs: list[tuple[int, int, int]]
) -> None:
    assert list(common_runs(first, second)) == runs


@pytest.mark.parametrize(
    ("mine", "theirs"), [([0], [4]), ([0], [-1]), ([9], [0]), ([0, 1], [0]), ([], []), ([0], [0, 1])]
)
def test_what_a_peer_says_is_checked_before_memory_is_named(mine: list[int], theirs: list[int]) -> None:
    here, there = Place(data=1 << 20, states=1 << 30, blocks=3), Place(data=1 << 40, states=1 << 41, blocks=4)
    with pytest.raises(ValueError, match=r"blocks|there"):
        paired_pieces(LAYOUT, here, mine, there, theirs)
