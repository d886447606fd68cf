"""LongCat: Hermes's objects between tags of its own."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read


def test_calls() -> None:
    call = '<longcat_tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</longcat_tool_call>'
    got = read("longcat", f"Ok.{call}\n{call}\nnot shown")
    assert (got.content, calls(got)) == ("Ok.", [("a", '{"x": 1}')] * 2)


def test_what_is_no_call_is_text() -> None:
    text = "<longcat_tool_call>{}</longcat_tool_call>"
    assert (read("longcat", text).content, read("longcat", text).calls) == (text, [])
