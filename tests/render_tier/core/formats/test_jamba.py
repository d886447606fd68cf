"""Jamba: an array between tags."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read


def test_calls_and_text_before_them() -> None:
    array = '[\n  {"name": "a", "arguments": {}},\n  {"name": "b", "arguments": {"x": 1}}\n]'
    got = read("jamba", f"Ok.<tool_calls>{array}</tool_calls>x")
    assert (got.content, calls(got)) == ("Ok.", [("a", "{}"), ("b", '{"x": 1}')])


def test_a_region_that_holds_no_array_is_text() -> None:
    assert read("jamba", "<tool_calls>none</tool_calls>").content == "<tool_calls>none</tool_calls>"
