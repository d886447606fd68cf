"""Prefix hashes, the index of what members hold, and the affinity policies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.prefix import PrefixIndex, block_hashes
from orchestrator.core.selection import Candidate, PolicyName, decide, rendezvous_rank, within_load

IDS = st.lists(st.integers(0, 5), max_size=40)


def hashes(ids: list[int], seed: bytes = b"", max_blocks: int = 100) -> list[bytes]:
    return block_hashes(ids, block=4, max_blocks=max_blocks, seed=seed)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(IDS, IDS)
def test_equal_hashes_mean_equal_prefixes(a: list[int], b: list[int]) -> None:
    equal = sum(x == y for x, y in zip(hashes(a), hashes(b), strict=False))
    assert equal == common(a, b) // 4


@given(IDS)
def test_only_whole_blocks_up_to_the_bound_are_hashed(ids: list[int]) -> None:
    assert len(hashes(ids)) == len(ids) // 4
    assert hashes(ids, max_blocks=3) == hashes(ids)[:3]


def test_another_salt_is_another_prompt() -> None:
    assert not set(hashes([1] * 8, b"a")) & set(hashes([1] * 8, b"b"))


@given(st.lists(st.tuples(st.sampled_from("xyz"), IDS), max_size=12), IDS)
def test_the_index_predicts_the_longest_prefix_given_to_each_member(
    given_to: list[tuple[str, list[int]]], prompt: list[int]
) -> None:
    index = PrefixIndex(10_000)
    for member, ids in given_to:
        index.add(member, hashes(ids))
    expected: dict[str, int] = {}
    for member, ids in given_to:
        depth = min(common(ids, prompt) // 4, len(hashes(ids)), len(hashes(prompt)))
        if depth:
            expected[member] = max(depth, expected.get(member, 0))
    assert index.cached(hashes(prompt)) == expected


def test_the_index_is_bounded_and_prefixes_shorten_from_their_ends() -> None:
    index = PrefixIndex(5)
    index.add("x", hashes([1] * 16))
    index.add("x", hashes([2] * 12))
    assert len(index) == 5
    assert index.cached(hashes([2] * 12)) == {"x": 3}
    assert index.cached(hashes([1] * 16)) == {"x": 2}


def test_a_member_can_be_forgotten() -> None:
    index = PrefixIndex(100)
    for member in "xy":
        index.add(member, hashes([1] * 8))
    index.add("x", hashes([2] * 8))
    index.forget("x")
    assert index.cached(hashes([1] * 8)) == {"y": 2}
    assert len(index) == 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.floats(1, 3))
def test_some_member_is_always_within_load(active: list[int], factor: float) -> None:
    candidates = [Candidate(str(i), count) for i, count in enumerate(active)]
    allowed = within_load(candidates, factor)
    assert allowed
    assert min(candidates, key=lambda c: c.active) in allowed


def ranked(what: bytes, names: str = "abcd") -> list[Candidate]:
    return [Candidate(name, rank=rendezvous_rank(what, name)) for name in names]


def winner(policy: PolicyName, candidates: list[Candidate]) -> str:
    return decide(policy, candidates, 0, lambda n: 0).winner.key


def test_orchestrators_agree_without_talking_and_spread_what_is_different() -> None:
    chosen = Counter(winner("prefix_affinity", ranked(str(i).encode())) for i in range(400))
    assert set(chosen) == set("abcd")
    assert min(chosen.values()) > 50
    assert all(
        winner("session_affinity", ranked(str(i).encode()))
        == winner("session_affinity", ranked(str(i).encode())[::-1])
        for i in range(50)
    )


def test_a_member_that_leaves_moves_only_what_it_had() -> None:
    for i in range(100):
        before = winner("prefix_affinity", ranked(str(i).encode()))
        after = winner("prefix_affinity", ranked(str(i).encode(), "abc"))
        assert before in (after, "d")


def test_a_longer_cached_prefix_counts_before_rendezvous() -> None:
    candidates = ranked(b"p")
    for held in candidates:
        others = [replace(c, cached_blocks=1) for c in candidates if c is not held]
        assert winner("prefix_affinity", [*others, replace(held, cached_blocks=2)]) == held.key


def test_affinity_gives_way_to_load_and_says_so() -> None:
    candidates = [
        Candidate("hot", 8, cached_blocks=9, rank=9),
        Candidate("a", 1, rank=1),
        Candidate("b", 1, rank=2),
    ]
    decision = decide("prefix_affinity", candidates, 0, lambda n: 0)
    assert decision.spilled
    assert decision.winner.key == "b"
    assert decision.as_json()["winner"] == "b"
    assert decision.as_json()["candidates"][0] == {
        "member": "hot", "active": 8, "healthy": True, "tried": False, "cached_blocks": 9, "rank": 0.0,
        "index": "approximate",
    }  # fmt: skip


def test_affinity_never_chooses_a_member_that_is_down_or_has_failed() -> None:
    best = Candidate("best", cached_blocks=9, rank=9)
    other = Candidate("other", rank=1)
    for bad in (replace(best, healthy=False), replace(best, tried=True)):
        assert winner("prefix_affinity", [bad, other]) == "other"


@pytest.mark.parametrize("policy", ["prefix_affinity", "session_affinity"])
def test_without_anything_to_go_by_the_least_active_is_chosen(policy: PolicyName) -> None:
    assert winner(policy, [Candidate("a", 2), Candidate("b", 1), Candidate("c", 2)]) == "b"
