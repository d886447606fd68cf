"""GLM's calls and reasoning: names before anything else, keys and values in tags of their own."""

from __future__ import annotations

import json

import pytest

from tests.support.reading import arguments, calls, read

FAMILY = "glm47"
NAMES = {"tool": "glm47", "reasoning": "glm47"}


def argument(key: str, value: str, gap: str = "") -> str:
    return f"<arg_key>{key}</arg_key>{gap}<arg_value>{value}</arg_value>{gap}"


@pytest.mark.parametrize("newline", ["", "\n"])
def test_names_with_and_without_newlines_and_arguments(newline: str) -> None:
    given = argument("leaf", "mint", newline) + argument("minutes", "3", newline)
    text = f"<tool_call>brew{newline}{given}</tool_call>"
    assert arguments(text, FAMILY) == '{"leaf": "mint", "minutes": 3}'
    assert arguments(f"<tool_call>ping{newline}</tool_call>", FAMILY) == "{}"


def test_white_space_belongs_to_values_and_not_to_keys() -> None:
    given = argument(" leaf ", " x\n")
    assert arguments(f"<tool_call>brew{given}</tool_call>", FAMILY) == '{"leaf": " x\\n"}'


def test_the_other_name_of_the_family() -> None:
    text = "\n<think>kettle</think><tool_call>ping</tool_call>"
    got = read(text, tool="glm45", reasoning="glm45")
    assert (got.reasoning, calls(got)) == ("\nkettle", [("ping", "{}")])


@pytest.mark.parametrize("name", ["summon_whale", "pin", "", "two words"])
def test_a_call_of_a_tool_that_the_request_does_not_have_is_not_made(name: str) -> None:
    got = read(f"Hm. <tool_call>{name}{argument('a', 'b')}</tool_call>", tool=FAMILY)
    assert (got.content, got.calls) == ("Hm. ", [])
    got = read(f"\n<tool_call>{name}</tool_call>", tool=FAMILY)
    assert got.content == "", "white space alone beside markup is not content"


def test_a_call_after_one_that_is_not_made_has_the_first_index() -> None:
    got = read(f"<tool_call>whale{argument('a', 'b')}</tool_call><tool_call>ping</tool_call>", tool=FAMILY)
    assert calls(got) == [("ping", "{}")]


def test_a_cut_name_is_no_call_unless_it_is_whole() -> None:
    assert read("<tool_call>pin", tool=FAMILY).calls == []
    assert calls(read("<tool_call>ping", tool=FAMILY)) == [("ping", "{}")]


def test_a_call_before_the_end_of_reasoning_ends_it() -> None:
    got = read("I will ask.\n<tool_call>ping</tool_call>", **NAMES)
    assert (got.reasoning, calls(got)) == ("I will ask.", [("ping", "{}")])


@pytest.mark.parametrize("inner", ["</arg_value> twice", "<arg_key>x</arg_key>", "</tool_call> and on"])
def test_a_tag_inside_a_value_is_text(inner: str) -> None:
    got = arguments(f"<tool_call>brew{argument('leaf', f'say {inner}')}</tool_call>", FAMILY)
    assert json.loads(got) == {"leaf": f"say {inner}"}


def test_a_value_that_is_not_closed_ends_with_the_call() -> None:
    text = "<tool_call>brew<arg_key>leaf</arg_key><arg_value>mint</tool_call>\n<tool_call>ping</tool_call>"
    assert calls(read(text, tool=FAMILY)) == [("brew", '{"leaf": "mint"}'), ("ping", "{}")]


def test_a_call_that_is_not_closed_ends_where_the_next_begins() -> None:
    text = f"<tool_call>brew{argument('leaf', 'x')}<tool_call>ping</tool_call>"
    assert calls(read(text, tool=FAMILY)) == [("brew", '{"leaf": "x"}'), ("ping", "{}")]


def test_a_key_without_a_value_is_passed_over() -> None:
    text = f"<tool_call>brew<arg_key>lost</arg_key>{argument('leaf', 'x')}</tool_call>"
    assert arguments(text, FAMILY) == '{"leaf": "x"}'


def test_a_stray_end_of_a_call_is_text() -> None:
    assert read("End </tool_call> of it.", tool=FAMILY).content == "End </tool_call> of it."
