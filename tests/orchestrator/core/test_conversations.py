"""Turns of conversations that are kept: found under their own name alone, within bounds."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.conversations import Conversations, Spoken, conversation_key, unpack

IDS = st.lists(st.integers(0, 2**40), max_size=50)


@given(IDS, IDS)
def test_a_turn_is_unpacked_as_it_was(prompt: list[int], output: list[int]) -> None:
    assert unpack(Spoken(prompt, output).pack()) == Spoken(prompt, output)


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"text", Spoken([1], [2]).pack()[:-1], b"\x92\x90\xc0"], ids=repr
)
def test_what_nobody_packed_is_no_turn(value: bytes) -> None:
    assert unpack(value) is None


def test_names_of_different_tenants_and_models_never_meet() -> None:
    keys = [
        conversation_key(*parts)
        for parts in [("a", "m", "c"), ("b", "m", "c"), ("a", "n", "c"), ("a", None, "c"), ("a", "m", "d"),
                      ("am", "", "c"), ("a", "mc", ""), ("", "am", "c"), ("a", "m", "\ud800")]
    ]  # fmt: skip
    assert all(one != other for one, other in combinations(keys, 2))


def test_the_last_turn_takes_the_place_of_the_one_before() -> None:
    kept = Conversations(2, 100, 10)
    kept.put(b"k", b"one", 0)
    kept.put(b"k", b"two", 1)
    assert (kept.get(b"k", 2), kept.get(b"k", 3), len(kept)) == (b"two", b"two", 1)


def test_a_conversation_ends_so_long_after_its_last_turn() -> None:
    kept = Conversations(9, 100, 10)
    kept.put(b"k", b"one", 0)
    kept.put(b"k", b"two", 6)
    assert kept.get(b"k", 15.9) == b"two"
    assert kept.get(b"k", 16) is None
    assert len(kept) == 0


STEPS = st.lists(st.tuples(st.sampled_from(b"abcdef"), st.integers(0, 40), st.floats(0, 3)), max_size=40)


@given(STEPS)
def test_within_bounds_the_last_turn_of_a_conversation_and_no_older_one(
    steps: list[tuple[int, int, float]],
) -> None:
    kept, now = Conversations(3, 60, 5.0), 0.0
    spoken: dict[bytes, tuple[float, bytes]] = {}
    for number, (letter, size, pause) in enumerate(steps):
        now += pause
        key, turn = bytes([letter]), bytes([number]) * size
        kept.put(key, turn, now)
        spoken[key] = now, turn
        assert kept.get(key, now) == turn
        found = {other: value for other in spoken if (value := kept.get(other, now)) is not None}
        assert all(
            value == spoken[other][1] and now - spoken[other][0] < 5.0 for other, value in found.items()
        )
        assert len(found) == len(kept) <= 3
        assert sum(map(len, found.values())) <= 60


def test_a_turn_larger_than_everything_leaves_nothing_of_its_conversation() -> None:
    kept = Conversations(9, 10, 10)
    kept.put(b"k", b"one", 0)
    kept.put(b"other", b"two", 0)
    kept.put(b"k", bytes(11), 0)
    assert (kept.get(b"k", 0), kept.get(b"other", 0)) == (None, b"two")
