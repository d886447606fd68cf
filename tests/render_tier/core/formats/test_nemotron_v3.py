"""Nemotron 3: an answer is never empty when the request says so."""

from __future__ import annotations

from tests.support.reading import calls, read

NAMES = {"tool": "qwen3_coder", "reasoning": "nemotron_v3"}
CALL = "<tool_call><function=ping></function></tool_call>"


def test_white_space_at_the_end_of_reasoning_is_not_shown() -> None:
    assert read("thought  \n\n</think>Answer.", **NAMES).reasoning == "thought"


def test_reasoning_alone_is_repeated_as_content_on_request() -> None:
    got = read("all of it", repeat_reasoning=True, **NAMES)
    assert (got.reasoning, got.content) == ("all of it", "all of it")
    assert read("all of it", **NAMES).content == ""


def test_reasoning_before_an_answer_or_a_call_is_not_repeated() -> None:
    got = read("hm</think>Yes.", repeat_reasoning=True, **NAMES)
    assert (got.reasoning, got.content) == ("hm", "Yes.")
    got = read("hm" + CALL, repeat_reasoning=True, **NAMES)
    assert (got.content, calls(got)) == ("", [("ping", "{}")])


def test_reasoning_too_long_to_be_kept_is_not_repeated() -> None:
    got = read("x" * 30, repeat_reasoning=True, hold_limit=20, **NAMES)
    assert (got.reasoning, got.content) == ("x" * 30, "")
