"""Calls as a Python list: Llama 3.2 and 4."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import NAMED, calls, cut, read


def test_several_calls_and_python_values() -> None:
    got = read("pythonic", "[a(x='it', y=-1.5, z=[True, None]), b(), c.d(k={'p': (1, 2)})]")
    assert calls(got) == [
        ("a", '{"x": "it", "y": -1.5, "z": [true, null]}'),
        ("b", "{}"),
        ("c.d", '{"k": {"p": [1, 2]}}'),
    ]


def test_a_list_that_does_not_begin_the_answer_is_text() -> None:
    got = read("pythonic", "Look:\n[a(x=1)]")
    assert (got.content, got.calls) == ("Look:\n[a(x=1)]", [])


def test_positional_arguments_are_text() -> None:
    assert read("pythonic", "[a('mint')]").content == "[a('mint')]"


def test_lists_that_hold_no_calls_are_text() -> None:
    for text in ("[1, 2, 3]", "[see below]", "[]", "[a]", "[x](y)"):
        assert (read("pythonic", text).content, read("pythonic", text).calls) == (text, [])


def test_brackets_in_strings_are_arguments() -> None:
    assert calls(read("pythonic", "[a(x='grep \"]\" )]')]")) == [("a", '{"x": "grep \\"]\\" )]"}')]


def test_a_cut_list_keeps_what_came() -> None:
    got = read("pythonic", "[a(), b(x='never en")
    assert cut(got) == [("a", "{}", True), ("b", '{"x": "never en', False)]


def test_text_after_the_list_is_kept() -> None:
    got = read("pythonic", "[a()]\nDone.")
    assert (got.content, calls(got)) == ("\nDone.", [("a", "{}")])


def test_a_value_that_is_no_literal_ends_its_call() -> None:
    got = read("pythonic", "[a(x=f(1))]")
    assert cut(got) == [("a", '{"x": "f"', False)]


def test_llama4_with_and_without_its_markers() -> None:
    for text in ("<|python_start|>[a(x=1)]<|python_end|>", "<|python_start|>[a(x=1)]", "[a(x=1)]"):
        assert calls(read("llama4_pythonic", text)) == [("a", '{"x": 1}')]


def test_llama4_end_marker_ends_a_list_that_is_not_closed() -> None:
    assert calls(read("llama4_pythonic", "<|python_start|>[a(x=1)<|python_end|>")) == [("a", '{"x": 1}')]


def test_forced_choices_are_json() -> None:
    required = read("pythonic", '[{"name": "a", "parameters": {"x": 1}}, {"name": "b"}]', choice="required")
    assert calls(required) == [("a", '{"x": 1}'), ("b", "{}")]
    named = read("pythonic", '{"x": 1}', choice=NAMED)
    assert (calls(named), named.finish_reason) == ([("tide_table", '{"x": 1}')], "stop")


def test_a_forced_choice_without_a_call_is_a_stop_with_the_text() -> None:
    got = read("pythonic", "I cannot.", choice="required")
    assert (got.content, got.calls, got.finish_reason) == ("I cannot.", [], "stop")
