"""Kept turns are found by prompts that extend them, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.turns import (
    BLOCK,
    MARK_BYTES,
    Search,
    Turn,
    Turns,
    UnusableTurn,
    checked,
    place_of,
    scope,
    usable_seconds,
)

WHOSE = scope("tenant", "", b"model")


def turn(tokens: int, until: float = 100.0) -> Turn:
    return Turn.of(tokens, {"remote_request_id": str(tokens)}, "http://d", 0.0, until)


def kept(*conversations: list[int], until: float = 100.0) -> Turns:
    turns = Turns(100)
    for ids in conversations:
        assert turns.keep(WHOSE, len(ids) - 10, ids, turn(len(ids), until))
    return turns


FIRST = [7 * i % 1000 for i in range(3 * BLOCK + 5)]


def test_a_turn_is_given_out_once_to_a_prompt_that_extends_it() -> None:
    turns = kept(FIRST)
    assert turns.take(WHOSE, [*FIRST, 1], 0) == turn(len(FIRST))
    assert turns.take(WHOSE, [*FIRST, 1], 0) == "nothing_held"
    assert len(turns) == 0


@pytest.mark.parametrize("at", [0, 1, BLOCK, 2 * BLOCK + 3, len(FIRST) - 1])
def test_one_other_id_anywhere_is_not_a_prefix(at: int) -> None:
    turns = kept(FIRST)
    edited = [*FIRST[:at], FIRST[at] + 1, *FIRST[at + 1 :], 1]
    assert turns.take(WHOSE, edited, 0) == ("not_a_prefix" if at >= 2 * BLOCK else "nothing_held")
    assert turns.take(WHOSE, [*FIRST[:at], *FIRST[at + 1 :], 1, 2], 0) in ("not_a_prefix", "nothing_held")


def test_the_same_prompt_again_does_not_extend_what_came_of_it() -> None:
    turns = kept(FIRST)
    assert turns.take(WHOSE, FIRST, 0) == "not_a_prefix"
    assert turns.take(WHOSE, FIRST[:-10], 0) == "not_a_prefix"


def test_the_longest_turn_is_given_out() -> None:
    turns = kept(FIRST[: BLOCK + 1], FIRST, FIRST[: 2 * BLOCK])
    lengths = []
    for _ in range(3):
        found = turns.take(WHOSE, [*FIRST, 1], 0)
        assert isinstance(found, Turn)
        lengths.append(found.tokens)
    assert lengths == [len(FIRST), 2 * BLOCK, BLOCK + 1]


def test_an_expired_turn_is_not_given_out() -> None:
    turns = kept(FIRST, until=5.0)
    assert turns.take(WHOSE, [*FIRST, 1], 5.0) == "expired"
    assert turns.take(WHOSE, [*FIRST, 1], 5.0) == "nothing_held"


@pytest.mark.parametrize(
    "other",
    [scope("other", "", b"model"), scope("tenant", "b", b"model"), scope("tenant", "", b"model\0salt")],
    ids=["tenant", "generation", "model or salt"],
)
def test_nobody_else_finds_it(other: bytes) -> None:
    turns = kept(FIRST)
    assert turns.take(other, [*FIRST, 1], 0) == "nothing_held"
    assert isinstance(turns.take(WHOSE, [*FIRST, 1], 0), Turn)


def test_parts_of_a_scope_do_not_run_into_each_other() -> None:
    assert len({scope("a", "bc", b"d"), scope("ab", "c", b"d"), scope("a", "b", b"cd")}) == 3


def test_the_oldest_go_when_there_are_too_many() -> None:
    turns = Turns(2)
    conversations = [[i] * (BLOCK + 1) for i in range(5)]
    for ids in conversations:
        turns.keep(WHOSE, BLOCK, ids, turn(len(ids)))
    assert len(turns) == 2
    found = [isinstance(turns.take(WHOSE, [*ids, 1], 0), Turn) for ids in conversations]
    assert found == [False, False, False, True, True]


def test_less_than_a_block_is_not_kept() -> None:
    turns = Turns(2)
    assert not turns.keep(WHOSE, 5, FIRST[: BLOCK - 1], turn(BLOCK - 1))
    assert len(turns) == 0


def test_kept_again_it_is_there_once() -> None:
    turns = kept(FIRST, FIRST)
    assert len(turns) == 1
    assert isinstance(turns.take(WHOSE, [*FIRST, 1], 0), Turn)
    assert turns.take(WHOSE, [*FIRST, 1], 0) == "nothing_held"


IDS = st.lists(st.integers(0, 1), max_size=3).map(lambda few: [i for i in few for _ in range(BLOCK // 2)])


@given(st.lists(st.tuples(st.booleans(), IDS, st.integers(0, 3)), max_size=12))
def test_what_is_given_out_is_the_longest_extended_of_what_is_kept(
    steps: list[tuple[bool, list[int], int]],
) -> None:
    turns, model = Turns(100), dict[tuple[int, ...], Turn]()
    for keeps, front, rest in steps:
        ids = front + [2] * rest
        if keeps:
            if turns.keep(WHOSE, len(ids), ids, turn(len(ids))):
                model[tuple(ids)] = turn(len(ids))
            continue
        found = turns.take(WHOSE, ids, 0)
        fit = [key for key in model if len(key) < len(ids) and tuple(ids[: len(key)]) == key]
        if not fit:
            assert not isinstance(found, Turn)
        else:
            assert found == model.pop(max(fit, key=len))
    assert len(turns) == len(model)


class Pairs:
    """Turns in a store of keys and values, each asked for once."""

    def __init__(self) -> None:
        self.values: dict[bytes, Turn] = {}
        self.marks: dict[bytes, int] = {}

    def keep(self, ids: list[int], turn: Turn) -> bool:
        place = place_of(WHOSE, len(ids) - 10, ids)
        if place is None:
            return False
        self.values[place.key] = turn
        for block, bits in place.marks.items():
            for bit in bits:
                self.marks[block] = self.marks.get(block, 0) | 1 << (8 * MARK_BYTES - 1 - bit)
        return True

    def take(self, ids: list[int]) -> Turn | str:
        search = Search(WHOSE, ids)
        marks = [
            self.marks[block].to_bytes(MARK_BYTES).rstrip(b"\0") if block in self.marks else None
            for block in search.blocks
        ]
        for key, length in search.keys(marks):
            if (found := self.values.pop(key, None)) is not None:
                assert found.tokens == length
                return found
        return "not_a_prefix" if search.began_so else "nothing_held"


@given(st.lists(st.tuples(st.booleans(), IDS, st.integers(0, BLOCK + 3)), max_size=12))
def test_a_store_of_keys_and_values_gives_out_the_same(steps: list[tuple[bool, list[int], int]]) -> None:
    turns, pairs = Turns(100), Pairs()
    for keeps, front, rest in steps:
        ids = front + [2] * rest
        if keeps:
            assert turns.keep(WHOSE, len(ids) - 10, ids, turn(len(ids))) == pairs.keep(ids, turn(len(ids)))
            continue
        mine, theirs = turns.take(WHOSE, ids, 0), pairs.take(ids)
        assert isinstance(mine, Turn) == isinstance(theirs, Turn)
        if isinstance(mine, Turn) or mine == "not_a_prefix":
            assert mine == theirs, "marks may outlive what they told of"


def test_another_scope_shares_no_key_and_no_mark() -> None:
    mine, others = (place_of(scope(name, "", b"model"), len(FIRST), FIRST) for name in ("a", "b"))
    assert mine is not None
    assert others is not None
    assert mine.key != others.key
    assert not set(mine.marks) & set(others.marks)


@pytest.mark.parametrize("mark", [b"", b"\xff" * 500, b"\0"], ids=len)
def test_marks_that_nobody_made_lead_nowhere_else(mark: bytes) -> None:
    search = Search(WHOSE, FIRST)
    keys = list(search.keys([mark] * len(search.blocks)))
    assert len({key for key, _ in keys}) == len(keys) <= len(search.blocks) * BLOCK
    assert all(length < len(FIRST) for _, length in keys)


PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_block_ids": [[5, 6, 7]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 1,
    "remote_num_tokens": 48,
    "unknown": 1,
}


def test_params_are_given_on_as_they_came() -> None:
    assert checked(PARAMS, 49, 16) == (48, PARAMS)


def test_a_list_of_blocks_is_cut_to_what_the_tokens_need() -> None:
    assert checked(PARAMS | {"remote_num_tokens": 17}, 49, 16) == (
        17,
        PARAMS | {"remote_num_tokens": 17, "remote_block_ids": [[5, 6]]},
    )


def test_groups_of_sliding_windows_are_given_on_as_they_came() -> None:
    groups = {"remote_block_ids": [[1, 2], [5, 6, 7]]}
    assert checked(PARAMS | groups, 49, 16) == (48, PARAMS | groups)


@pytest.mark.parametrize(
    "change",
    [
        {"do_remote_decode": False},
        {"remote_request_id": ""},
        {"remote_block_ids": []},
        {"remote_block_ids": [[1], [2, 3]]},
        {"remote_block_ids": [[1], [2, 3, 4, 5]]},
        {"remote_block_ids": [3]},
        {"remote_block_ids": [[1, 2]]},
        {"remote_num_tokens": 50},
        {"remote_num_tokens": 0},
        {"remote_num_tokens": None},
        {"remote_num_tokens": True},
    ],
    ids=str,
)
def test_params_that_are_not_understood_are_not_used(change: dict[str, Any]) -> None:
    with pytest.raises(UnusableTurn):
        checked(PARAMS | change, 49, 16)


def test_our_deadline_is_well_before_the_engines() -> None:
    assert usable_seconds(480, 0.5) == 240
    assert usable_seconds(12, 0.9) == 2
    assert usable_seconds(3, 1) == 0
