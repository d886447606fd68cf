"""Stop strings: the earliest completed wins, and what may become one is held back, no more."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.core.stops import StopMatcher, StopTable

stop_lists = st.lists(st.text("ab<", min_size=1, max_size=5), min_size=1, max_size=4)
texts = st.text("ab<c", max_size=40)


def first_completed(text: str, stops: list[str], after: int = 0) -> tuple[int, str] | None:
    """By definition: the smallest end of an occurrence that ends after ``after``, then list order."""
    for end in range(after + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return end, stop
    return None


def longest_open(text: str, stops: list[str]) -> int:
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


@given(texts, stop_lists, st.lists(st.integers(0, 40), max_size=5))
def test_the_match_is_the_earliest_completed_for_any_cutting(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    table = StopTable(stops)
    matcher = StopMatcher(table)
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        matcher = StopMatcher(table, matcher.progress)
        found = matcher.feed(text[start:end])
        if found is not None:
            assert (start + found[0], found[1]) == first_completed(text, stops)
            return
        assert matcher.held == longest_open(text[:end], stops)
    assert first_completed(text, stops) is None


@given(texts, texts, stop_lists)
def test_a_string_completed_while_not_armed_does_not_count(early: str, late: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopTable(stops))
    assert matcher.feed(early, armed=False) is None
    found = matcher.feed(late)
    expected = first_completed(early + late, stops, after=len(early))
    assert (found and (len(early) + found[0], found[1])) == expected


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopTable(["a", ""])


@pytest.mark.parametrize("progress", [[3], [-1], [], [0, 0]])
def test_impossible_progress_is_refused(progress: list[int]) -> None:
    with pytest.raises(ValueError, match="progress"):
        StopMatcher(StopTable(["abc"]), progress)
