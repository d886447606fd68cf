"""Step-3.5: reasoning in every answer, without the white space at its end."""

from __future__ import annotations

from render_tier.core.formats import reasoning_format
from tests.support.reading import calls, read

NAMES = {"tool": "step3p5", "reasoning": "step3p5"}


def test_white_space_at_the_end_of_reasoning_is_not_shown() -> None:
    got = read("think\n\nmore\n</think>\nYes.", **NAMES)
    assert (got.reasoning, got.content) == ("think\n\nmore", "\nYes.")


def test_a_call_ends_reasoning() -> None:
    got = read("hm\n<tool_call><function=ping></function></tool_call>", **NAMES)
    assert (got.reasoning, calls(got)) == ("hm", [("ping", "{}")])


def test_no_template_switch_turns_it_off() -> None:
    assert reasoning_format("step3p5").disabled_by == {}
