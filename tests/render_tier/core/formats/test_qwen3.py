"""Qwen3's reasoning, opened by the prompt, the model or nobody."""

from __future__ import annotations

import pytest

from tests.render_tier.core.formats.reading import calls, read

FAMILY = "hermes_qwen3"
OPEN, CLOSED, SILENT = (
    "<|im_start|>assistant\n<think>\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start|>assistant\n",
)
CALL = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        (OPEN, "Hm.\n</think>\n\nYes.", "Hm.\n", "\n\nYes."),
        (OPEN, "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        (OPEN, "Hm. It goes on", "Hm. It goes on", ""),
        (CLOSED, "Yes.", "", "Yes."),
        (SILENT, "<think>\nHm.\n</think>\n\nYes.", "\nHm.\n", "\n\nYes."),
        (SILENT, "never opened and never closed", "never opened and never closed", ""),
        (SILENT, "never opened</think>Yes.", "never opened", "Yes."),
        (OPEN, "Hm.</think>Yes.</think> No.", "Hm.", "Yes. No."),
        (OPEN, "</think>", "", ""),
        (OPEN, "", "", ""),
        (OPEN, "a </thin", "a </thin", ""),
    ],
)
def test_reasoning_ends_at_its_marker(prompt: str, text: str, reasoning: str, content: str) -> None:
    got = read(FAMILY, text, prompt=prompt)
    assert (got.reasoning, got.content, got.calls) == (reasoning, content, [])


@pytest.mark.parametrize(("kwargs", "reasoning"), [({}, "Yes."), ({"enable_thinking": False}, "")])
def test_the_templates_switch_decides_where_the_prompt_says_nothing(
    kwargs: dict[str, bool], reasoning: str
) -> None:
    got = read(FAMILY, "Yes.", prompt=SILENT, kwargs=kwargs)
    assert (got.reasoning, got.content) == (reasoning, "" if reasoning else "Yes.")


def test_a_call_ends_reasoning() -> None:
    got = read(FAMILY, f"Hm.{CALL}", prompt=OPEN)
    assert (got.reasoning, got.content, calls(got)) == ("Hm.", "", [("a", "{}")])


def test_without_tools_the_marker_of_a_call_ends_reasoning_and_is_text() -> None:
    got = read(FAMILY, f"Hm.{CALL}", prompt=OPEN, tools=False)
    assert (got.reasoning, got.content, got.calls) == ("Hm.", CALL, [])
