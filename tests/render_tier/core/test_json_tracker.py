"""The tracker finds where a JSON value ends and whether it is valid, for any cutting of the text."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.core.json_tracker import MAX_DEPTH, JsonTracker

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
spelled = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    values,
    st.booleans(),
    st.sampled_from([None, 1]),
)
jsonish = st.text(alphabet='{}[]",:\\ \n\x01<0123456789.eE+-truefalsn/ub', max_size=60)


def track(text: str, cuts: list[int] | None = None) -> tuple[int, bool]:
    """(index after the value or -1, valid), feeding the text in pieces and through a saved state each
    time."""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts or [])})
    tracker = JsonTracker()
    for start, end in itertools.pairwise(edges):
        tracker = JsonTracker.load(msgspec.msgpack.decode(msgspec.msgpack.encode(tracker.dump())))
        found = tracker.feed(text[start:end], 0)
        if found >= 0:
            return start + found, tracker.valid
    return -1, tracker.valid


def strict_end(text: str) -> int | None:
    """Where Python's reader says the first value ends; None when the text does not start with a whole
    value."""
    start = len(text) - len(text.lstrip(" \t\n\r"))
    try:
        decoder = json.JSONDecoder(parse_constant=lambda _name: pytest.fail("not JSON"))
        return decoder.raw_decode(text, start)[1]
    except (json.JSONDecodeError, pytest.fail.Exception):
        return None


@given(spelled, st.text(max_size=5))
def test_a_value_ends_where_it_ends(text: str, after: str) -> None:
    scalar = text[0] not in '{["'
    rest = "," + after if scalar else after
    assert track(text + rest) == (len(text), True)


@given(jsonish)
def test_valid_means_that_a_json_reader_agrees(text: str) -> None:
    end, valid = track(text)
    if end >= 0 and valid:
        json.loads(text[:end])


@given(jsonish)
def test_a_whole_value_is_never_called_invalid(text: str) -> None:
    expected = strict_end(text)
    if expected is not None and text.lstrip(" \t\n\r")[0] in '{["':
        assert track(text) == (expected, True)


@given(jsonish | spelled, st.lists(st.integers(0, 200), max_size=6))
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert track(text, cuts) == track(text)


def test_an_invalid_value_ends_at_its_own_bracket() -> None:
    assert track("{leaf: mint} rest") == (12, False)
    assert track('{"a": [1, oops], "b": "}"}]') == (26, False)


def test_a_marker_ends_an_invalid_value_outside_strings() -> None:
    assert track('{"a": oops</tool_call>') == (10, False)
    assert track('{"a": "</tool_call>"}') == (21, True)


def test_depth_beyond_the_bound_is_counted_and_not_kept() -> None:
    deep = MAX_DEPTH * 3
    tracker = JsonTracker()
    assert tracker.feed("[" * deep, 0) == -1
    assert not tracker.valid
    assert len(msgspec.msgpack.encode(tracker.dump())) < MAX_DEPTH + 50
    assert tracker.feed("]" * deep + "x", 0) == deep


def test_a_control_character_in_a_string_is_invalid_but_does_not_end_it() -> None:
    assert track('"a\nb" ') == (5, False)


@pytest.mark.parametrize(
    "text", ["{", "[", '{"', '{"a', '{"a"', '{"a":', '{"a": ', "1", "-", "tru", '"', '"\\u12']
)
def test_unfinished_values_go_on(text: str) -> None:
    assert track(text) == (-1, True)


@pytest.mark.parametrize(
    "state",
    [
        [99, 0, b"", 0, False, True],
        [9, 99, b"", 0, False, True],
        [5, 0, b"", 0, False, True],
        [11, 0, b"", 0, False, False],
        [0, 0, b"x", 0, False, True],
        [0, 0, b"", -1, False, True],
        [6, 0, b"", 0, True, True],
        [0, 0, b"{" * (MAX_DEPTH + 1), 0, False, True],
        [0, 0],
        "no",
    ],
)
def test_impossible_states_are_refused(state: object) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        JsonTracker.load(state)


@given(spelled | jsonish, jsonish, st.integers(0, 80), st.booleans())
def test_the_short_way_reads_as_the_long_one_or_reads_nothing(
    text: str, more: str, cut: int, strict: bool
) -> None:
    tracker = JsonTracker(strict=strict)
    begun = text[: cut % (len(text) + 1)]
    if tracker.feed(begun, 0) >= 0:
        return  # it ended, or is broken
    more = text[len(begun) :] + more
    for length in range(1, len(more) + 1):
        again = JsonTracker.load(tracker.dump(), strict=strict)
        if again.plain(more[:length]):
            longer = JsonTracker.load(tracker.dump(), strict=strict)
            assert longer.feed(more[:length], 0) == -1
            assert longer.valid == tracker.valid
            assert again.dump() == longer.dump()
        else:
            assert again.dump() == tracker.dump()
