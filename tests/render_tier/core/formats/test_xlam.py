"""xLAM: an array in any of its wrappings."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read

ARRAY = '[{"name": "a", "arguments": {"x": "[TOOL_CALLS]"}}, {"name": "b", "arguments": {}}]'


def test_every_wrapping() -> None:
    for text in (
        ARRAY, f" {ARRAY}", f"```json\n{ARRAY}\n```", f"```\n{ARRAY}```", f"<tool_call>{ARRAY}</tool_call>",
        f"[TOOL_CALLS]{ARRAY}", f"[TOOL_CALLS] {ARRAY}",
    ):  # fmt: skip
        got = read("xlam", text)
        assert (got.content, calls(got)) == ("", [("a", '{"x": "[TOOL_CALLS]"}'), ("b", "{}")]), text


def test_text_around_the_calls_is_shown() -> None:
    assert read("xlam", f"Ok.\n[TOOL_CALLS]{ARRAY}\nDone.").content == "Ok.\n\nDone."


def test_other_arrays_and_fences_are_text() -> None:
    for text in ("[1, 2]", "[]", '[{"x": 1}]', "[TOOLS]", "Code:\n```json\n[1]\n```\nEnd."):
        assert (read("xlam", text).content, read("xlam", text).calls) == (text, [])
