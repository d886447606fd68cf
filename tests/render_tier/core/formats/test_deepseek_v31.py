"""DeepSeek V3.1: calls, and reasoning where it is asked for."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def test_calls_of_one_section_count_up() -> None:
    got = read("deepseek_v31", f'Ok.{BEGIN}{CALL}a{SEP}{{}}{CALL_END}{CALL}b{SEP}{{"x": 1}}{CALL_END}{END}')
    assert (got.content, calls(got)) == ("Ok.", [("a", "{}"), ("b", '{"x": 1}')])


def test_pretty_printed_arguments_are_a_call() -> None:
    got = read("deepseek_v31", f'{BEGIN}{CALL}a{SEP}{{\n  "x": 1\n}}{CALL_END}{END}')
    assert calls(got) == [("a", '{\n  "x": 1\n}')]


def test_a_section_without_calls_is_none() -> None:
    got = read("deepseek_v31", f"Hm. {BEGIN}{END}")
    assert (got.content, got.calls, got.finish_reason) == ("Hm. ", [], "stop")


def test_what_has_no_separator_is_text() -> None:
    got = read("deepseek_v31", f'{BEGIN}{CALL}a{{"x": 1}}{CALL_END}{END}')
    assert (got.content, got.calls) == (f'{CALL}a{{"x": 1}}', [])


def test_a_cut_call_keeps_what_came() -> None:
    got = read("deepseek_v31", f'{BEGIN}{CALL}a{SEP}{{"x": "mi')
    assert cut(got) == [("a", '{"x": "mi', False)]


def test_a_cut_name_is_no_call() -> None:
    got = read("deepseek_v31", f"Ok. {BEGIN}{CALL}brew")
    assert (got.content, got.calls) == ("Ok. ", [])


def test_a_call_that_is_not_closed_ends_where_the_next_begins() -> None:
    got = read("deepseek_v31", f'{BEGIN}{CALL}a{SEP}{{"x": "{CALL}b{SEP}{{}}{CALL_END}{END}')
    assert cut(got) == [("a", '{"x": "', False), ("b", "{}", True)]


def test_an_end_marker_in_the_middle_of_a_string_ends_the_call() -> None:
    got = read("deepseek_v31", f'{BEGIN}{CALL}a{SEP}{{"x": "y{CALL_END}{END}')
    assert cut(got) == [("a", '{"x": "y', False)]


def test_arguments_that_are_no_json_come_as_written() -> None:
    got = read("deepseek_v31", f"{BEGIN}{CALL}a{SEP}{{x: 1}} and more{CALL_END}{END}")
    assert cut(got) == [("a", "{x: 1} and more", False)]


def test_missing_arguments_are_an_empty_object() -> None:
    got = read("deepseek_v31", f"{BEGIN}{CALL}a{SEP}{CALL_END}{END}")
    assert calls(got) == [("a", "{}")]


def test_nothing_that_asks_for_thinking_means_none() -> None:
    got = read("deepseek_v31", "<think>x</think>y", prompt="<｜Assistant｜>")
    assert (got.reasoning, got.content) == ("", "<think>x</think>y")


def test_a_request_for_thinking_starts_with_reasoning() -> None:
    got = read("deepseek_v31", "x</think>y", prompt="<｜Assistant｜>", kwargs={"thinking": True})
    assert (got.reasoning, got.content) == ("x", "y")
