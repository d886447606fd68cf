"""ERNIE 4.5: reasoning, the answer in its wrapping, calls."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read


def test_reasoning_and_a_wrapped_answer() -> None:
    got = read("ernie45", "why\n</think>\n\n<response>\nBecause.\n</response>\n")
    assert (got.reasoning, got.content) == ("why\n", "\nBecause.\n")


def test_a_bare_answer_is_as_written() -> None:
    assert read("ernie45", "why</think>\n\nBecause.").content == "\n\nBecause."


def test_calls_after_reasoning() -> None:
    text = 'why</think>\n\n\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
    got = read("ernie45", text + '<tool_call>{"name": "b"}</tool_call>')
    assert (got.content, calls(got)) == ("", [("a", '{"x": 1}'), ("b", "{}")])


def test_required_after_reasoning() -> None:
    got = read("ernie45", 'why</think>\n\n[{"name": "a", "parameters": {}}]', choice="required")
    assert (got.content, calls(got)) == ("", [("a", "{}")])
