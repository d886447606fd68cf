"""Requests without tools, or with tool_choice none: what becomes of a call that the model writes anyway."""

from __future__ import annotations

import pytest

from tests.families.catalogue import FAMILIES
from tests.render_tier.core.formats.reading import read
from tests.support import reading

KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.tide_table:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
CALLS = {
    "hermes_qwen3": '<tool_call>\n{"name": "tide_table", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=tide_table>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=tide_table>\n</function>\n</seed:tool_call>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="tide_table">\n</｜DSML｜invoke>',
    "glm47": "<tool_call>tide_table</tool_call>",
    "kimi_k2": KIMI,
    "minimax_m2": '<minimax:tool_call>\n<invoke name="tide_table">\n</invoke>\n</minimax:tool_call>',
    "mistral": "[TOOL_CALLS]tide_table[ARGS]{}",
    "gemma4": '<|tool_call>call:tide_table{at:<|"|>now<|"|>}<tool_call|>',
}
WITHOUT = pytest.mark.parametrize(("choice", "tools"), [("none", True), (None, False)])


def begun(family: str) -> str:
    """An output that is in the middle of its reasoning."""
    writer = FAMILIES[family]
    return ("" if writer.openings[0].reasoning == "open" else writer.think[0]) + "Hm."


@WITHOUT
@pytest.mark.parametrize("family", CALLS)
def test_the_marker_of_a_call_ends_reasoning_and_its_text_is_the_answer(
    family: str, choice: str | None, tools: bool
) -> None:
    got = read(family, begun(family) + CALLS[family], choice=choice, tools=tools)
    assert (got.reasoning.strip(), got.content, got.calls) == ("Hm.", CALLS[family], [])


@WITHOUT
@pytest.mark.parametrize("family", CALLS)
def test_the_text_of_a_call_after_reasoning_is_whole(family: str, choice: str | None, tools: bool) -> None:
    """Its markers too, though they may be special tokens, and also in the middle of the answer."""
    end = FAMILIES[family].think[1].strip()
    text = f"{begun(family)}{end}Yes: {CALLS[family]} and more"
    got = read(family, text, choice=choice, tools=tools)
    assert (got.content, got.calls) == (text.partition(end)[2], [])


@WITHOUT
def test_a_message_to_a_function_is_not_for_the_reader(choice: str | None, tools: bool) -> None:
    call = '<|channel|>commentary to=functions.brew_tea <|constrain|>json<|message|>{"leaf": "mint"}<|call|>'
    text = f"<|channel|>analysis<|message|>Tea.<|end|><|start|>assistant{call}"
    got = read("openai_gptoss", text, choice=choice, tools=tools)
    assert (got.reasoning, got.content, got.calls) == ("Tea.", "", [])


def test_another_familys_marker_of_a_call_ends_reasoning_and_is_text() -> None:
    """Qwen3 reasoning ends at its own marker of calls, whichever tool parser is configured."""
    got = reading.read("Hm.<tool_call>x", reasoning="qwen3", tool="mistral")
    assert (got.reasoning, got.content) == ("Hm.", "<tool_call>x")
