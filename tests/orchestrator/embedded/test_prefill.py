"""How a chunk is cut up: by its length alone, evenly, without a gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.prefill import SLICE_TOKENS, cut, slices


@given(st.integers(1, 5000))
def test_slices_cover_the_chunk_evenly(count: int) -> None:
    made = slices(count)
    assert [first for first, _ in made] == [0, *(end for _, end in made[:-1])]
    assert made[-1][1] == count
    lengths = [end - first for first, end in made]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) <= SLICE_TOKENS
    assert len(made) == 1 or len(made) % 2 == 0


@given(st.integers(1, 500), st.integers(1, 9))
def test_cut_gives_as_many_ranges_as_asked_for(count: int, parts: int) -> None:
    made = cut(count, parts)
    assert len(made) == parts
    assert [n for first, end in made for n in range(first, end)] == list(range(count))
