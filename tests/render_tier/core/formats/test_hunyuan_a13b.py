"""Hunyuan A13B: reasoning and answer in text tags, calls as an array."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read


def test_reasoning_and_answer() -> None:
    got = read("hunyuan_a13b", "<think>\nwhy\n</think>\n<answer>\nBecause.\n</answer>")
    assert (got.reasoning, got.content) == ("why", "Because.")


def test_truncated_reasoning_is_reasoning() -> None:
    assert read("hunyuan_a13b", "<think>\nwhy").reasoning == "why"


def test_reasoning_without_an_answer_tag() -> None:
    got = read("hunyuan_a13b", "<think>\nwhy\n</think>\nBecause.")
    assert (got.reasoning, got.content) == ("why", "Because.")


def test_an_output_without_tags_is_content() -> None:
    assert read("hunyuan_a13b", "Because < 3.").content == "Because < 3."


def test_calls_with_nested_objects() -> None:
    text = '<tool_calls>[{"name": "a", "arguments": {"x": {"y": {"z": {}}}}}]</tool_calls>'
    for output in (text, f"<think>\nwhy\n</think>\n<answer>\n{text}\n</answer>"):
        assert calls(read("hunyuan_a13b", output)) == [("a", '{"x": {"y": {"z": {}}}}')]


def test_the_speaker_mark_is_not_shown() -> None:
    assert read("hunyuan_a13b", "助手：Because.").content == "Because."
