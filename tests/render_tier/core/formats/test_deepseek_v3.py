"""DeepSeek V3 and R1-0528: fenced calls."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
HEAD, CALL_END = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def section(*bodies: str) -> str:
    return "</think>" + BEGIN + "\n".join(f"{HEAD}{body}{CALL_END}" for body in bodies) + END


def test_fenced_calls() -> None:
    got = read("deepseek_r1", section("a\n```json\n{}\n```", 'b\n```json\n{"x": [1]}\n```'))
    assert calls(got) == [("a", "{}"), ("b", '{"x": [1]}')]


def test_pretty_printed_arguments_are_a_call() -> None:
    got = read("deepseek_r1", section('a\n```json\n{\n  "x": 1\n}\n```'))
    assert calls(got) == [("a", '{\n  "x": 1\n}')]


def test_braces_and_fences_in_strings_are_arguments() -> None:
    got = read("deepseek_r1", section('a\n```json\n{"x": "}{ ```"}\n```'))
    assert calls(got) == [("a", '{"x": "}{ ```"}')]


def test_a_call_without_its_fence_is_text() -> None:
    got = read("deepseek_r1", section("a"))
    assert (got.content, got.calls) == (f"{HEAD}a", [])


def test_the_fence_is_no_part_of_arguments_that_are_no_json() -> None:
    got = read("deepseek_r1", section("a\n```json\n{x: 1}\n```"))
    assert cut(got) == [("a", "{x: 1}", False)]


def test_the_newline_of_the_fence_is_no_part_of_arguments_either() -> None:
    got = read("deepseek_r1", section("a\n```json\n{\n```", "b\n```json\n{}\n```"))
    assert cut(got) == [("a", "{", False), ("b", "{}", True)]


def test_a_separator_written_twice_is_no_part_of_the_name() -> None:
    text = section("<｜tool▁sep｜>a\n```json\n{}\n```", "\tb\n```json\n{}\n```")
    assert calls(read("deepseek_r1", text)) == [("a", "{}"), ("b", "{}")]


def test_the_text_of_a_broken_call_does_not_vanish() -> None:
    broken = f"<｜tool▁call▁begin｜>function{CALL_END}<｜tool▁sep｜>a\n```json\n{{}}\n```{CALL_END}"
    got = read("deepseek_r1", f"</think>{BEGIN}{broken}{HEAD}b\n```json\n{{}}\n```{CALL_END}{END}")
    assert (got.content, calls(got)) == (broken.replace(CALL_END, ""), [("b", "{}")])


def test_text_after_the_section_is_not_shown() -> None:
    got = read("deepseek_r1", section("a\n```json\n{}\n```") + "\nDone.")
    assert (got.content, calls(got)) == ("", [("a", "{}")])
