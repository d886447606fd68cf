"""Hermes's calls: a JSON object between ``<tool_call>`` tags; also offered as qwen3_json."""

from __future__ import annotations

import pytest

from render_tier.core.formats import tool_format
from tests.render_tier.core.formats.reading import NAMED, calls, cut, read

FAMILY = "hermes_qwen3"


def object_of(arguments: str, name: str = "a") -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def said(text: str) -> str:
    return f"</think>{text}"


def test_the_other_name_of_the_family() -> None:
    assert tool_format("qwen3_json") is tool_format("hermes")


def test_calls_with_text_before_them_and_none_behind() -> None:
    made = object_of('{"x": 1}')
    call = f"<tool_call>\n{made}\n</tool_call>"
    got = read(FAMILY, said(f"Ok. {call}\n{call} not shown"))
    assert (got.content, calls(got)) == ("Ok. ", [("a", '{"x": 1}')] * 2)


def test_arguments_before_the_name_are_held_until_it_is_known() -> None:
    got = read(FAMILY, said('<tool_call>{"arguments": {"x": "y"}, "name": "a"}</tool_call>'))
    assert calls(got) == [("a", '{"x": "y"}')]


def test_tags_in_strings_are_text() -> None:
    arguments = '{"x": "</tool_call><tool_call>{\\"name\\": \\"b\\"}"}'
    assert calls(read(FAMILY, said(f"<tool_call>{object_of(arguments)}</tool_call>"))) == [("a", arguments)]


def test_a_call_cut_inside_its_arguments_keeps_them() -> None:
    got = read(FAMILY, said("<tool_call>" + object_of('{"x": "y')[:-1]))
    assert cut(got) == [("a", '{"x": "y', False)]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>none</tool_call>",
        '<tool_call>{"name": "a'[:20],
    ],
)
def test_what_never_looked_like_a_call_is_text(text: str) -> None:
    got = read(FAMILY, said(text))
    assert (got.content, got.calls) == (text, [])


def test_without_its_end_tag_the_next_call_is_read_all_the_same() -> None:
    got = read(FAMILY, said(f"<tool_call>{object_of('{}')}<tool_call>{object_of('{}', 'b')}</tool_call>"))
    assert calls(got) == [("a", "{}"), ("b", "{}")]


def test_white_space_alone_before_a_call_is_not_content() -> None:
    assert read(FAMILY, said(f"\n\n<tool_call>{object_of('{}')}</tool_call>")).content == ""


def test_a_named_function_keeps_the_familys_own_calls() -> None:
    got = read(FAMILY, said(f"<tool_call>{object_of('{}', 'tide_table')}</tool_call>"), choice=NAMED)
    assert (calls(got), got.finish_reason) == ([("tide_table", "{}")], "stop")
