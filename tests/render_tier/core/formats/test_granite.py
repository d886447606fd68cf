"""Granite 3: reasoning in words, calls as an array."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read

THINK, ANSWER = "Here is my thought process:", "Here is my response:"


def test_reasoning_in_words() -> None:
    got = read("granite", f"{THINK} count. {ANSWER} Two. Here is more.")
    assert (got.reasoning, got.content) == (" count. ", " Two. Here is more.")


def test_short_forms_of_the_words() -> None:
    got = read("granite", "Here's my thought process:a Here's my response:b")
    assert (got.reasoning, got.content) == ("a ", "b")


def test_truncated_reasoning_is_reasoning() -> None:
    assert read("granite", f"{THINK} count the").reasoning == " count the"


def test_the_words_in_an_answer_are_text() -> None:
    got = read("granite", f"{THINK}a{ANSWER}b {THINK} c")
    assert (got.reasoning, got.content) == ("a", f"b {THINK} c")


def test_calls_of_one_array_and_text_around_them() -> None:
    got = read("granite", 'Ok.\n<|tool_call|>[{"name": "a", "arguments": {}}, {"name": "b"}]\nDone.')
    assert (got.content, calls(got)) == ("Ok.\n\nDone.", [("a", "{}"), ("b", "{}")])


def test_the_marker_as_text() -> None:
    assert calls(read("granite", '<tool_call>[{"name": "a", "arguments": {}}]')) == [("a", "{}")]


def test_a_call_in_reasoning_ends_it() -> None:
    got = read("granite", f'{THINK}a<|tool_call|>[{{"name": "b", "arguments": {{}}}}]')
    assert (got.reasoning, calls(got)) == ("a", [("b", "{}")])


def test_an_element_that_is_no_call_is_left_out() -> None:
    text = '<|tool_call|>[{"name": "a", "arguments": {}}, {"x": [{}]}, {"name": "b", "arguments": {}}]'
    assert calls(read("granite", text)) == [("a", "{}"), ("b", "{}")]


def test_a_cut_call_keeps_what_came() -> None:
    got = read("granite", '<|tool_call|>[{"name": "a", "arguments": {"x": "mi')
    assert cut(got) == [("a", '{"x": "mi', False)]


def test_required_after_reasoning_and_at_once() -> None:
    array = '[{"name": "a", "parameters": {}}]'
    for text in (array, f"{THINK}why{ANSWER}{array}"):
        assert calls(read("granite", text, choice="required")) == [("a", "{}")]
