"""Phi-4-mini: an array after a word."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, read


def test_calls_and_text_around_them() -> None:
    array = '[{"name": "a", "arguments": {"x": "]}"}}, {"name": "b", "parameters": {}}]'
    got = read("phi4_mini_json", f"Ok. functools{array}!")
    assert (got.content, calls(got)) == ("Ok. !", [("a", '{"x": "]}"}'), ("b", "{}")])


def test_plain_content_streams() -> None:
    text = "functool and functools alone [1]"
    assert read("phi4_mini_json", text).content == text


def test_forced_choices_are_json() -> None:
    got = read("phi4_mini_json", '[{"name": "a", "parameters": {}}]', choice="required")
    assert calls(got) == [("a", "{}")]
