"""MiniMax M2: calls with attributes as models write them, and reasoning that the prompt opens."""

from __future__ import annotations

import json

import pytest

from tests.support.reading import arguments, calls, read

FAMILY = "minimax_m2"
NAMES = {"tool": "minimax_m2", "reasoning": "minimax_m2"}


def block(*invokes: str) -> str:
    return "<minimax:tool_call>\n" + "\n".join(invokes) + "\n</minimax:tool_call>"


def invoke(*parameters: str) -> str:
    return '<invoke name="brew">\n' + "\n".join(parameters) + "\n</invoke>"


def parameter(key: str, value: str) -> str:
    return f'<parameter name="{key}">{value}</parameter>'


@pytest.mark.parametrize("quote", ['"', "'", ""])
def test_quotes_around_names_may_be_single_or_missing(quote: str) -> None:
    text = f"<invoke name={quote}brew{quote}><parameter name={quote}leaf{quote}>mint</parameter></invoke>"
    assert arguments(text, FAMILY) == '{"leaf": "mint"}'


def test_values_are_verbatim_and_typed() -> None:
    text = block(invoke(parameter("leaf", "\n x \n"), parameter("minutes", "4"), parameter("note", "null")))
    assert json.loads(arguments(text, FAMILY)) == {"leaf": "\n x \n", "minutes": 4, "note": None}


def test_several_calls_in_one_block_and_none_of_unknown_tools() -> None:
    text = block(
        '<invoke name="ping">\n</invoke>', '<invoke name="whale">\n</invoke>', invoke(parameter("leaf", "x"))
    )
    assert calls(read(text, tool=FAMILY)) == [("ping", "{}"), ("brew", '{"leaf": "x"}')]


def test_a_parameter_ends_where_the_next_begins_and_an_attribute_more_is_no_matter() -> None:
    text = block(
        invoke('<parameter name="leaf">mint', '<parameter name="minutes" type="integer">4</parameter>')
    )
    assert json.loads(arguments(text, FAMILY)) == {"leaf": "mint\n", "minutes": 4}


def test_a_parameter_without_a_name_is_passed_over() -> None:
    text = block(invoke('<parameter name="">lost</parameter>', parameter("leaf", "x")))
    assert arguments(text, FAMILY) == '{"leaf": "x"}'


@pytest.mark.parametrize("inner", ["</parameter> twice", "</invoke> here"])
def test_a_closing_tag_inside_a_value_is_text(inner: str) -> None:
    got = arguments(block(invoke(parameter("leaf", inner))), FAMILY)
    assert json.loads(got) == {"leaf": inner}


def test_text_after_a_block_is_kept_and_a_stray_end_is_not_shown() -> None:
    got = read("One.\n" + block('<invoke name="ping"></invoke>') + "\nTwo.</minimax:tool_call>", tool=FAMILY)
    assert (got.content, calls(got)) == ("One.\n\nTwo.", [("ping", "{}")])


def test_the_block_ends_reasoning_and_an_invocation_alone_does_not() -> None:
    got = read('write <invoke name="ping">\n' + block('<invoke name="ping"></invoke>'), **NAMES)
    assert (got.reasoning, calls(got)) == ('write <invoke name="ping">', [("ping", "{}")])


def test_an_opening_tag_of_the_models_own_is_not_shown() -> None:
    got = read("<think>\nhm\n</think>\n\nYes.", **NAMES)
    assert (got.reasoning, got.content) == ("\nhm", "\n\nYes.")


def test_the_parser_that_leaves_reasoning_in_the_content() -> None:
    got = read("hm\n</think>\n\nYes.", reasoning="minimax_m2_append_think")
    assert (got.reasoning, got.content) == ("", "<think>hm\n</think>\n\nYes.")
