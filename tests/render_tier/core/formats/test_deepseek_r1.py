"""DeepSeek R1, its distillations and QwQ: reasoning."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read


def test_reasoning_goes_up_to_its_end_marker() -> None:
    got = read("deepseek_r1", "Two cups.\n</think>\n\nYes.")
    assert (got.reasoning, got.content) == ("Two cups.\n", "\n\nYes.")


def test_the_model_may_open_the_block_itself() -> None:
    prompt = "old</think>Hi.<｜end▁of▁sentence｜><｜User｜>Again?<｜Assistant｜>"
    got = read("deepseek_r1", "<think>\nnew</think>Answer.", prompt=prompt)
    assert (got.reasoning, got.content) == ("\nnew", "Answer.")


def test_truncated_reasoning_is_reasoning() -> None:
    got = read("deepseek_r1", "Two cups, maybe thr")
    assert (got.reasoning, got.content) == ("Two cups, maybe thr", "")


def test_a_prompt_that_closed_reasoning_makes_all_of_it_content() -> None:
    prompt = "<｜Assistant｜><think>\n\n</think>\n\n"
    got = read("deepseek_r1", "Right away.", prompt=prompt, kwargs={"enable_thinking": False})
    assert (got.reasoning, got.content) == ("", "Right away.")


def test_markers_quoted_in_the_answer_are_text() -> None:
    got = read("deepseek_r1", "hm</think>The tags are <think> and </think>.")
    assert (got.reasoning, got.content) == ("hm", "The tags are <think> and </think>.")


def test_tool_markup_in_reasoning_is_reasoning() -> None:
    text = 'maybe <tool_call>{"name": "tide_table", "arguments": {}}</tool_call>? No.</think>Nothing.'
    got = read("qwq", text)
    assert (got.reasoning.endswith("? No."), got.content, calls(got)) == (True, "Nothing.", [])


def test_last_reasoning_words_before_a_call_are_kept() -> None:
    got = read("qwq", 'So.</think><tool_call>{"name": "tide_table", "arguments": {}}</tool_call>')
    assert (got.reasoning, got.content, calls(got)) == ("So.", "", [("tide_table", "{}")])
