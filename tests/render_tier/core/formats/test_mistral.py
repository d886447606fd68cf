"""Mistral: reasoning, and calls in the formats of all tokenizer versions."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read


def test_reasoning_between_its_markers() -> None:
    got = read("mistral", "[THINK]why \n[/THINK]Because.")
    assert (got.reasoning, got.content) == ("why", "Because.")


def test_reasoning_after_text() -> None:
    got = read("mistral", "Hello [THINK]inner[/THINK] world")
    assert (got.reasoning, got.content) == ("inner", "Hello  world")


def test_brackets_of_ordinary_tokens_open_reasoning_too() -> None:
    pieces = read("mistral", "<think>why</think>Because.")
    assert (pieces.reasoning, pieces.content) == ("why", "Because.")


def test_calls_with_and_without_the_separator() -> None:
    got = read("mistral", 'Ok.\n[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b{}')
    assert (got.content, calls(got)) == ("Ok.", [("a", '{"x": 1}'), ("b", "{}")])


def test_the_id_between_name_and_arguments_is_no_part_of_the_name() -> None:
    assert calls(read("mistral", "[TOOL_CALLS]a[CALL_ID]abc123XYZ[ARGS]{}")) == [("a", "{}")]


def test_a_call_ends_reasoning() -> None:
    got = read("mistral", "[THINK]why[TOOL_CALLS]a[ARGS]{}")
    assert (got.reasoning, calls(got)) == ("why", [("a", "{}")])


def test_the_array_of_older_tokenizers() -> None:
    text = '[TOOL_CALLS] [ {"name" : "a" , "arguments" : { "x" : "]}" } }, {"name": "b"}]'
    assert calls(read("mistral", text)) == [("a", '{ "x" : "]}" }'), ("b", "{}")]


def test_arguments_before_the_name_wait_for_it() -> None:
    assert calls(read("mistral", '[TOOL_CALLS][{"arguments": {"x": 1}, "name": "a"}]')) == [("a", '{"x": 1}')]


def test_a_single_object_instead_of_the_array() -> None:
    assert calls(read("mistral", '[TOOL_CALLS]{"name": "a", "arguments": {}}')) == [("a", "{}")]


def test_cut_arguments_and_cut_names() -> None:
    assert cut(read("mistral", '[TOOL_CALLS]a[ARGS]{"x": "cu')) == [("a", '{"x": "cu', False)]
    array = read("mistral", '[TOOL_CALLS][{"name": "a", "arguments": {"x": "cu')
    assert cut(array) == [("a", '{"x": "cu', False)]
    assert read("mistral", "[TOOL_CALLS]save_sn").calls == []


def test_a_marker_written_twice_counts_once() -> None:
    got = read("mistral", "Ok.[TOOL_CALLS]\n[TOOL_CALLS]a[ARGS]{}")
    assert (got.content, calls(got)) == ("Ok.", [("a", "{}")])


def test_text_after_a_call_is_not_shown() -> None:
    got = read("mistral", "[TOOL_CALLS]a[ARGS]{} more")
    assert (got.content, calls(got)) == ("", [("a", "{}")])
