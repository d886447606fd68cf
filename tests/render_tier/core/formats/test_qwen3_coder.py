"""Qwen3-Coder's calls: structure, values typed by the schema, and what models get wrong."""

from __future__ import annotations

import json

import pytest

from tests.support.reading import arguments, calls, read, tool

FAMILY = "qwen3_coder"


def call(*parameters: str, name: str = "brew") -> str:
    return f"<tool_call>\n<function={name}>\n" + "\n".join(parameters) + "\n</function>\n</tool_call>"


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>"


def value(key: str, text: str) -> str:
    """The JSON text that a value becomes."""
    got = arguments(call(parameter(key, text)), FAMILY)
    prefix = f'{{"{key}": '
    assert got.startswith(prefix)
    assert json.loads(got)
    return got.removeprefix(prefix).removesuffix("}")


def test_a_call_without_arguments_has_an_empty_object() -> None:
    assert calls(read(call(name="ping"), tool=FAMILY)) == [("ping", "{}")]


def test_a_call_after_an_empty_one_keeps_its_arguments() -> None:
    text = call(name="ping") + "\n" + call(parameter("leaf", "mint"))
    assert calls(read(text, tool=FAMILY)) == [("ping", "{}"), ("brew", '{"leaf": "mint"}')]


@pytest.mark.parametrize(
    ("key", "text", "json_text"),
    [
        ("leaf", "00420", '"00420"'),
        ("leaf", "null", '"null"'),
        ("leaf", 'say "hi" \\ \t}{', '"say \\"hi\\" \\\\ \\t}{"'),
        ("leaf", "", '""'),
        ("minutes", "007", "7"),
        ("minutes", " 4 ", "4"),
        ("minutes", "5.0", "5.0"),
        ("minutes", "about five", '"about five"'),
        ("minutes", "9007199254740993123", "9007199254740993123"),
        ("grams", "1e3", "1000"),
        ("grams", "9007199254740993", "9007199254740993"),
        ("grams", "NaN", '"NaN"'),
        ("grams", "1e999", '"1e999"'),
        ("sweet", "TRUE", "true"),
        ("sweet", "0", "false"),
        ("sweet", "yes", '"yes"'),
        ("note", "null", "null"),
        ("note", "NULL", "null"),
        ("note", "nullable", '"nullable"'),
        ("note", "", '""'),
        ("either", "12", "12"),
        ("either", "twelve", '"twelve"'),
        ("steps", "[1, 2]", "[1, 2]"),
        ("steps", "['1']", "\"['1']\""),
        ("opts", '{"deg": "1"}', '{"deg": "1"}'),
        ("opts", '{"deg": NaN}', '"{\\"deg\\": NaN}"'),
        ("opts", '["\\ud800"]', '["\\ud800"]'),
        ("unknown", "12", '"12"'),
    ],
)
def test_a_value_is_typed_by_the_schema(key: str, text: str, json_text: str) -> None:
    assert value(key, text) == json_text


@pytest.mark.parametrize("tools", [[], [tool("other")]], ids=["no tools", "another tool"])
def test_without_a_schema_every_value_is_a_string(tools: list[dict[str, object]]) -> None:
    assert arguments(call(parameter("minutes", "4")), FAMILY, tools=tools) == '{"minutes": "4"}'


def test_one_newline_at_either_end_of_a_value_is_markup() -> None:
    assert value("leaf", "\n  in\n\n") == '"\\n  in\\n\\n"'
    assert (
        arguments("<function=brew><parameter=leaf>mint</parameter></function>", FAMILY) == '{"leaf": "mint"}'
    )


def test_of_a_repeated_parameter_the_last_counts_in_valid_json() -> None:
    got = arguments(call(parameter("leaf", "first"), parameter("leaf", "second")), FAMILY)
    assert json.loads(got) == {"leaf": "second"}


def test_a_string_is_passed_on_before_it_is_complete() -> None:
    got = read("<tool_call><function=brew><parameter=leaf>\nthe first words", tool=FAMILY)
    assert calls(got) == [("brew", '{"leaf": "the first words')]
    assert got.calls[0].complete is False


def test_a_value_that_is_no_string_waits_for_its_end() -> None:
    got = read("<tool_call><function=brew><parameter=leaf>x</parameter><parameter=minutes>\n4", tool=FAMILY)
    assert calls(got) == [("brew", '{"leaf": "x", "minutes": ')]
    assert got.calls[0].complete is False


def test_a_cut_between_parameters_leaves_valid_arguments() -> None:
    got = read("<tool_call><function=brew>" + parameter("leaf", "x") + "\n<param", tool=FAMILY)
    assert calls(got) == [("brew", '{"leaf": "x"}')]


@pytest.mark.parametrize(
    "inner",
    ["</parameter> twice", "</function> and on", "</tool_call> too", "a </parameter></b", "<parameters>"],
)
def test_a_closing_tag_inside_a_value_is_text(inner: str) -> None:
    assert json.loads(value("leaf", f"say {inner}")) == f"say {inner}"


def test_a_closing_tag_behind_a_whole_number_ends_it() -> None:
    text = call("<parameter=minutes>\n4\n</parameter>\n</parameter>", parameter("leaf", "x"))
    assert arguments(text, FAMILY) == '{"minutes": 4, "leaf": "x"}'


def test_a_parameter_ends_where_the_next_one_begins() -> None:
    text = call("<parameter=leaf>\nmint", parameter("minutes", "4"))
    assert arguments(text, FAMILY) == '{"leaf": "mint", "minutes": 4}'


def test_a_call_without_its_closing_tags_ends_with_the_wrapper() -> None:
    text = "<tool_call><function=brew><parameter=leaf>mint</parameter></tool_call>" + call(name="ping")
    assert calls(read(text, tool=FAMILY)) == [("brew", '{"leaf": "mint"}'), ("ping", "{}")]
    text = "<tool_call><function=brew><parameter=leaf>mint</function></tool_call>"
    assert arguments(text, FAMILY) == '{"leaf": "mint"}'


def test_functions_without_a_wrapper_or_several_in_one() -> None:
    text = "<function=ping></function>"
    assert calls(read(text, tool=FAMILY)) == [("ping", "{}")]
    text = "<tool_call>\n<function=ping>\n</function>\n<function=ping>\n</function>\n</tool_call>"
    assert calls(read(text, tool=FAMILY)) == [("ping", "{}")] * 2


def test_the_name_comes_whole_and_without_white_space() -> None:
    assert calls(read("<tool_call><function= ping \n></function>", tool=FAMILY)) == [("ping", "{}")]
    assert calls(read("<tool_call><function=></function></tool_call>", tool=FAMILY)) == []


def test_white_space_inside_tags_is_no_matter() -> None:
    text = call("< parameter = leaf>\nmint\n< / parameter >")
    assert arguments(text, FAMILY) == '{"leaf": "mint"}'


def test_white_space_around_calls_is_not_content() -> None:
    got = read("Sure.\n\n" + call(name="ping") + "\n", tool=FAMILY)
    assert (got.content, len(got.calls)) == ("Sure.", 1)
    assert read("\n\n" + call(name="ping"), tool=FAMILY).content == ""
    assert read("Sure.\n\n", tool=FAMILY).content == "Sure.\n\n"


def test_text_after_a_call_is_kept() -> None:
    got = read("One.\n" + call(name="ping") + "\nTwo.\n", tool=FAMILY)
    assert (got.content, len(got.calls)) == ("One.\n\nTwo.", 1)


def test_a_call_ends_reasoning_and_its_tags_alone_do_not() -> None:
    got = read("hm <function=ping> hm\n" + call(name="ping"), tool=FAMILY, reasoning="qwen3")
    assert (got.reasoning, got.content) == ("hm <function=ping> hm\n", "")
    assert calls(got) == [("ping", "{}")]


def test_a_long_value_that_waits_is_bounded() -> None:
    got = read(call(parameter("minutes", "1" * 50)), tool=FAMILY, hold_limit=20)
    assert calls(got) == [("brew", '{"minutes": "' + "1" * 50 + '"}')]
    assert got.calls[0].complete


def test_a_long_name_is_none_and_costs_nothing_more() -> None:
    assert calls(read("<tool_call><function=" + "n" * 1500 + "></function>", tool=FAMILY)) == []


def test_a_value_nested_too_deep_to_be_read_is_a_string() -> None:
    deep = "[" * 3000 + "]" * 3000
    got = read(call(parameter("steps", deep)), tool=FAMILY).calls[0]
    assert json.loads(got.arguments) == {"steps": deep}
