"""Llama 3: call objects without markers."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read


def test_calls_one_after_another_however_separated() -> None:
    for separator in ("; ", ";", "\n", ""):
        text = separator.join(('{"name": "a", "parameters": {}}', '{"name": "b", "arguments": {"x": 1}}'))
        assert calls(read("llama3_json", text)) == [("a", "{}"), ("b", '{"x": 1}')]


def test_the_python_tag_is_not_shown() -> None:
    got = read("llama3_json", '<|python_tag|>{"name": "a", "parameters": {"x": "}{"}}')
    assert (got.content, calls(got)) == ("", [("a", '{"x": "}{"}')])


def test_the_python_tag_before_no_call_is_text() -> None:
    for text in (
        "<|python_tag|>print(1)",
        '<|python_tag|>{name": "a"}',
        "<|python_tag|>",
        "<|python_tag|> \n{",
    ):
        got = read("llama3_json", text)
        assert (got.content, got.calls) == (text, [])


def test_other_keys_before_the_name() -> None:
    assert calls(read("llama3_json", '{"type": "function", "name": "a", "parameters": {}}')) == [("a", "{}")]


def test_braces_in_prose_are_text() -> None:
    assert read("llama3_json", "Use {curly} braces, {} too.").content == "Use {curly} braces, {} too."


def test_a_json_answer_is_text_as_it_comes() -> None:
    text = '{"answer": {"name": "a", "parameters": {}}}'
    got = read("llama3_json", text)
    assert (got.content, got.calls) == (text, [])


def test_after_an_object_that_is_no_call_all_is_text() -> None:
    text = 'Use {curly} braces. {"name": "a", "parameters": {}}'
    got = read("llama3_json", text)
    assert (got.content, got.calls) == (text, [])


def test_text_before_the_first_call_is_kept_and_after_it_is_not() -> None:
    got = read("llama3_json", 'Hm.\n{"name": "a", "parameters": {}} I used {leaf}.')
    assert (got.content, calls(got)) == ("Hm.\n", [("a", "{}")])


def test_white_space_alone_before_a_call_is_no_content() -> None:
    assert read("llama3_json", '\n\n{"name": "a", "parameters": {}}').content == ""


def test_the_first_of_two_argument_keys_counts() -> None:
    text = '{"name": "a", "arguments": {"x": 1}, "parameters": {"x": 2}}'
    assert calls(read("llama3_json", text)) == [("a", '{"x": 1}')]


def test_a_cut_second_call_leaves_the_first() -> None:
    got = read("llama3_json", '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": "mi')
    assert cut(got) == [("a", "{}", True), ("b", '{"x": "mi', False)]


def test_an_object_cut_before_it_is_a_call_is_text() -> None:
    got = read("llama3_json", '{"name": "a", "par')
    assert (got.content, got.calls) == ('{"name": "a", "par', [])
