"""FunctionGemma: several arguments, values that are JSON or text, and text that is no call."""

from __future__ import annotations

import json

import pytest

from tests.support.reading import arguments, calls, read

FAMILY = "functiongemma"


def call(name: str, **values: str) -> str:
    body = ",".join(f"{key}:<escape>{value}<escape>" for key, value in values.items())
    return f"<start_function_call>call:{name}{{{body}}}<end_function_call>"


def test_several_arguments_are_one_object() -> None:
    got = arguments(call("brew", leaf="00420", minutes="3", note="null", steps="[1, 2]"), FAMILY)
    assert got == '{"leaf": "00420", "minutes": 3, "note": null, "steps": [1, 2]}'


def test_a_value_is_json_whatever_the_schema_says() -> None:
    assert arguments(call("brew", leaf="7"), FAMILY) == '{"leaf": 7}'
    assert json.loads(arguments(call("brew", leaf="NaN"), FAMILY)) == {"leaf": "NaN"}


def test_a_value_that_cannot_be_json_is_passed_on_as_it_comes() -> None:
    got = read("<start_function_call>call:brew{leaf:<escape>some words", tool=FAMILY)
    assert calls(got) == [("brew", '{"leaf": "some words')]


@pytest.mark.parametrize(
    "text", ["<start_function_call>nothing{}", "<start_function_call>call:{}", "<start_function_"]
)
def test_what_does_not_start_like_a_call_is_text(text: str) -> None:
    got = read(f"Look: {text} there", tool=FAMILY)
    assert (got.content, got.calls) == (f"Look: {text} there", [])


def test_a_marker_written_twice_is_one() -> None:
    assert calls(read("<start_function_call>" + call("ping"), tool=FAMILY)) == [("ping", "{}")]


def test_a_call_that_is_not_closed_ends_where_the_next_begins() -> None:
    text = "<start_function_call>call:brew{leaf:<escape>x<escape>}" + call("ping")
    assert calls(read(text, tool=FAMILY)) == [("brew", '{"leaf": "x"}'), ("ping", "{}")]


def test_braces_and_commas_inside_a_value_are_text() -> None:
    assert json.loads(arguments(call("brew", leaf="a}, b:{c"), FAMILY)) == {"leaf": "a}, b:{c"}


def test_white_space_around_calls_is_not_content_and_text_after_is_kept() -> None:
    got = read("One.\n" + call("ping") + "\nTwo.\n", tool=FAMILY)
    assert got.content == "One.\n\nTwo."
