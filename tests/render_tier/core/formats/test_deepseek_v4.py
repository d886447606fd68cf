"""DeepSeek V4: reasoning around DSML calls, and the spellings of their wrapper."""

from __future__ import annotations

import pytest

from tests.support.reading import calls, read

NAMES = {"tool": "deepseek_v4", "reasoning": "deepseek_v4"}
PING = '<｜DSML｜invoke name="ping">\n</｜DSML｜invoke>'


@pytest.mark.parametrize("tag", ["tool_calls", "toolcalls", "tool"])
def test_the_wrapper_in_all_spellings_ends_reasoning(tag: str) -> None:
    got = read(f"let me see \n<｜DSML｜{tag}>{PING}</｜DSML｜tool_calls>", **NAMES)
    assert (got.reasoning, got.content, calls(got)) == ("let me see", "", [("ping", "{}")])


def test_a_call_without_its_wrapper_does_not_end_reasoning() -> None:
    got = read(f"I could write {PING} now.</think>Done.", **NAMES)
    assert (got.reasoning, got.content, got.calls) == (f"I could write {PING} now.", "Done.", [])


def test_white_space_at_the_end_of_reasoning_is_not_shown_and_content_is_verbatim() -> None:
    got = read("thought \n\n</think>\n\nHi. \n", **NAMES)
    assert (got.reasoning, got.content) == ("thought", "\n\nHi. \n")
    assert read("thought \n", **NAMES).reasoning == "thought"


def test_reasoning_that_is_opened_again_is_reasoning() -> None:
    got = read("<think>a</think>b<think>c</think>d", **NAMES)
    assert (got.reasoning, got.content) == ("ac", "bd")


def test_a_closed_prompt_gives_content_and_a_stray_end_is_not_shown() -> None:
    got = read("Hi.</think> there", prompt=False, **NAMES)
    assert (got.reasoning, got.content) == ("", "Hi. there")


def test_a_think_tag_inside_a_value_is_text() -> None:
    text = (
        '</think><｜DSML｜tool_calls><｜DSML｜invoke name="brew">'
        '<｜DSML｜parameter name="leaf" string="true">a</think>b'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>"
    )
    assert calls(read(text, **NAMES)) == [("brew", '{"leaf": "a</think>b"}')]
