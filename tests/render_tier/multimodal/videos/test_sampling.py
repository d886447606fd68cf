"""Which frames are taken of a video."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.multimodal.videos.sampling import (
    FEWEST_FRAMES,
    MOST_FRAMES,
    Rule,
    Sampling,
    UnknownRate,
    chosen,
    file_facts,
    middle_times,
)

RULES: tuple[Rule, ...] = ("from the start", "to the end")
FROM_THE_START, TO_THE_END = map(Sampling, RULES)
EVENLY = Sampling("evenly")
totals = st.integers(2, 200_000)
rates = st.floats(0.5, 240)


@given(st.sampled_from(RULES), totals, rates)
def test_frames_are_in_order_and_of_the_file(rule: Rule, total: int, rate: float) -> None:
    indices = chosen(Sampling(rule), total, rate)
    assert indices == sorted(set(indices))
    assert 0 == indices[0] <= indices[-1] < total
    assert min(FEWEST_FRAMES, total // 2 * 2) <= len(indices) <= MOST_FRAMES + 1


@given(totals, rates)
def test_the_last_frame_is_taken_to_the_end(total: int, rate: float) -> None:
    assert chosen(TO_THE_END, total, rate)[-1] == total - 1


@given(st.integers(1, 200_000), st.floats(0, 240), st.none() | st.floats(0.001, 240), st.integers(1, 768))
def test_as_many_as_may_be_evenly(total: int, rate: float, most_a_second: float | None, most: int) -> None:
    indices = chosen(Sampling("evenly", file_rate=most_a_second, most_frames=most), total, rate)
    assert indices == sorted(set(indices))
    assert 0 == indices[0] <= indices[-1] < total
    assert len(indices) <= most
    if most_a_second is None:
        assert len(indices) == min(most, total)
    if len(indices) > 1:
        assert indices[-1] == total - 1


@pytest.mark.parametrize(
    ("sampling", "total", "rate", "expected"),
    [
        (EVENLY, 3, 0.0, [0, 1, 2]),
        (Sampling("evenly", most_frames=4), 11, 0.0, [0, 3, 6, 10]),
        (Sampling("evenly", file_rate=2), 20, 10.0, [0, 6, 12, 19]),
        (Sampling("evenly", file_rate=2), 20, 0.0, [0]),
    ],
)
def test_evenly(sampling: Sampling, total: int, rate: float, expected: list[int]) -> None:
    assert chosen(sampling, total, rate) == expected


@pytest.mark.parametrize(
    ("total", "rate", "expected"),
    [
        (1, 10.0, []),
        (3, 10.0, [0, 1]),
        (40, 10.0, [0, 5, 10, 15, 20, 25, 30, 35]),
    ],
)
def test_pairs_from_the_start(total: int, rate: float, expected: list[int]) -> None:
    assert chosen(FROM_THE_START, total, rate) == expected


@pytest.mark.parametrize(
    ("total", "count", "number", "index"),
    # Both are in a rest that fills no two vectors: 87413.997 is 87414 in float32, and 56308.997 below 56309.
    [(88987, 396, 389, 87414), (56542, 728, 725, 56308)],
)
def test_steps_are_rounded_as_torch_does(total: int, count: int, number: int, index: int) -> None:
    indices = chosen(FROM_THE_START, total, rate=2 * total / (count + 0.5))
    assert (len(indices), indices[number]) == (count, index)


def test_a_file_that_does_not_say_its_rate() -> None:
    with pytest.raises(UnknownRate):
        chosen(FROM_THE_START, 100, 0.0)
    assert chosen(TO_THE_END, 100, 0.0) == [0, 14, 28, 42, 57, 71, 85, 99]
    facts = file_facts("to the end", 100, 0.0, [0, 48])
    assert (facts.rate, facts.duration, middle_times(facts.indices, facts.rate, 2)) == (24.0, 0.0, [1.0])


def test_times_are_those_between_a_groups_first_and_last_frame() -> None:
    assert middle_times(range(5), 1.0, 2) == [0.5, 2.5, 4.0]
    assert middle_times([0, 10, 30], 10.0, 2) == [0.5, 3.0]
