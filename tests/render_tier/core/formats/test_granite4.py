"""Granite 4: call objects between tags."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read


def test_calls_and_text_around_them() -> None:
    call = '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
    got = read("granite4", f"Ok.\n{call}\n{call}\nDone.")
    assert (got.content, calls(got)) == ("Ok.\n\n\nDone.", [("a", '{"x": 1}')] * 2)


def test_white_space_alone_beside_calls_is_no_content() -> None:
    call = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    assert read("granite4", f"\n{call}\n{call}\n").content == ""


def test_what_is_no_call_is_text() -> None:
    assert read("granite4", "<tool_call>no</tool_call>").content == "<tool_call>no</tool_call>"
