"""Apertus: objects whose key is the name."""

from __future__ import annotations

from tests.render_tier.core.formats.reading import calls, cut, read


def test_calls_and_text_around_them() -> None:
    got = read("apertus", 'Ok. <|tools_prefix|>[{"a": {"x": 1}}, {"b": {}}]<|tools_suffix|>')
    assert (got.content, calls(got)) == ("Ok.", [("a", '{"x": 1}'), ("b", "{}")])


def test_arguments_stream_before_the_call_ends() -> None:
    assert cut(read("apertus", '<|tools_prefix|>[{"a": {"x": "mi')) == [("a", '{"x": "mi', False)]


def test_what_is_no_array_is_text() -> None:
    assert read("apertus", "<|tools_prefix|>no").content == "<|tools_prefix|>no"
