"""DeepSeek's DSML calls: declared types, the schema, wrappers around all arguments, and damage."""

from __future__ import annotations

import json

import pytest

from tests.support.reading import arguments, calls, read

FAMILY = "deepseek_v32"
START, END = "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"


def invoke(*parameters: str, name: str = "brew") -> str:
    body = "\n".join(parameters)
    return f'<｜DSML｜invoke name="{name}">\n{body}\n</｜DSML｜invoke>'


def parameter(key: str, value: str, string: str | None = "true") -> str:
    attribute = f' string="{string}"' if string is not None else ""
    return f'<｜DSML｜parameter name="{key}"{attribute}>{value}</｜DSML｜parameter>'


def block(*invokes: str) -> str:
    return START + "\n".join(invokes) + END


def test_declared_text_and_json() -> None:
    text = block(
        invoke(
            parameter("leaf", "42"), parameter("minutes", "4", "false"), parameter("sweet", "false", "false")
        )
    )
    assert arguments(text, FAMILY) == '{"leaf": "42", "minutes": 4, "sweet": false}'


@pytest.mark.parametrize(
    ("key", "text", "string", "json_text"),
    [
        ("minutes", "5", "true", "5"),
        ("minutes", "five", "true", '"five"'),
        ("leaf", "5", "false", '"5"'),
        ("leaf", "null", "false", '"null"'),
        ("note", "null", "true", "null"),
        ("grams", "NaN", "false", '"NaN"'),
        ("grams", "1e999", "false", '"Infinity"'),
        ("steps", '["1", 2]', "false", "[1, 2]"),
        ("opts", '{"deg": "1.5"}', "false", '{"deg": 1.5}'),
        ("free", "NaN", "false", '"NaN"'),
        ("free", "[NaN, 1e999]", "false", '["NaN", "Infinity"]'),
        ("free", "plain text", "false", '"plain text"'),
        ("free", '{"a": [1]}', None, '{"a": [1]}'),
    ],
)
def test_the_schema_corrects_what_was_declared(
    key: str, text: str, string: str | None, json_text: str
) -> None:
    got = arguments(block(invoke(parameter(key, text, string))), FAMILY)
    assert got == f'{{"{key}": {json_text}}}'
    json.loads(got)


def test_json_that_cannot_be_json_is_passed_on_as_it_comes() -> None:
    got = read(f'{START}<｜DSML｜invoke name="brew"><｜DSML｜parameter name="free">some words', tool=FAMILY)
    assert calls(got) == [("brew", '{"free": "some words')]


@pytest.mark.parametrize("key", ["arguments", "input"])
@pytest.mark.parametrize("string", ["true", "false"])
def test_arguments_in_a_wrapper_are_taken_out(key: str, string: str) -> None:
    text = block(invoke(parameter(key, '{"leaf": "mint", "minutes": "2"}', string)))
    assert arguments(text, FAMILY) == '{"leaf": "mint", "minutes": 2}'


def test_a_wrapper_that_holds_something_else_or_is_not_alone_stays() -> None:
    text = block(invoke(parameter("input", '{"colour": 1}', "false")))
    assert arguments(text, FAMILY) == '{"input": {"colour": 1}}'
    text = block(invoke(parameter("input", '{"leaf": "x"}', "false"), parameter("minutes", "2", "false")))
    assert arguments(text, FAMILY) == '{"input": {"leaf": "x"}, "minutes": 2}'
    text = block(invoke(parameter("input", "x", "true"), name="ping"))
    assert calls(read(text, tool=FAMILY)) == [("ping", '{"input": "x"}')]


def test_a_cut_wrapper_is_a_cut_parameter() -> None:
    text = f'{START}<｜DSML｜invoke name="brew"><｜DSML｜parameter name="input" string="true">{{"leaf'
    got = read(text, tool=FAMILY)
    assert calls(got) == [("brew", '{"input": "{\\"leaf')]
    assert got.calls[0].complete is False


def test_a_wrapper_too_long_to_be_held_is_a_parameter() -> None:
    long = json.dumps({"leaf": "x" * 100})
    got = arguments(block(invoke(parameter("input", long, "true"))), FAMILY, hold_limit=50)
    assert json.loads(got) == {"input": long}


def test_the_block_of_calls_ends_the_turn() -> None:
    got = read("Before.\n" + block(invoke(name="ping")) + "\nAfter.", tool=FAMILY)
    assert (got.content, calls(got)) == ("Before.\n", [("ping", "{}")])
    got = read("\n\n" + block(invoke(name="ping")), tool=FAMILY)
    assert got.content == ""


def test_a_call_without_the_block_and_without_its_end() -> None:
    text = invoke(parameter("leaf", "x")) + END
    assert arguments(text, FAMILY) == '{"leaf": "x"}'
    text = START + '<｜DSML｜invoke name="brew">' + parameter("leaf", "x") + END
    assert arguments(text, FAMILY) == '{"leaf": "x"}'


def test_a_closing_tag_inside_a_value_is_text() -> None:
    inner = "ends with </｜DSML｜parameter> or </｜DSML｜invoke> inside"
    assert json.loads(arguments(block(invoke(parameter("leaf", inner))), FAMILY)) == {"leaf": inner}


def test_of_a_repeated_parameter_the_last_counts_in_valid_json() -> None:
    got = arguments(block(invoke(parameter("leaf", "first"), parameter("leaf", "second"))), FAMILY)
    assert json.loads(got) == {"leaf": "second"}


@pytest.mark.parametrize("attribute", ['string="true', "string=true", 'string"true"', ""])
def test_a_damaged_attribute_does_not_lose_the_parameter(attribute: str) -> None:
    text = block(invoke(f'<｜DSML｜parameter name="leaf" {attribute}>mint</｜DSML｜parameter>'))
    assert json.loads(arguments(text, FAMILY)) == {"leaf": "mint"}


@pytest.mark.parametrize("rest", ["", "\n", END, "\n<｜DSML｜inv", " is how a block begins."])
def test_a_block_without_a_call_is_text(rest: str) -> None:
    got = read(f"Look: {START}{rest}", tool=FAMILY)
    assert (got.content, got.calls) == (f"Look: {START}{rest}", [])


def test_what_stands_between_the_block_and_its_first_call_is_not_shown() -> None:
    got = read(f"Look: {START}{START}so then " + invoke(name="ping") + END, tool=FAMILY)
    assert (got.content, calls(got)) == ("Look: ", [("ping", "{}")])


def test_a_block_is_waited_for_within_bounds() -> None:
    text = START + "x" * 100 + invoke(name="ping")
    got = read(text, tool=FAMILY, hold_limit=60)
    assert (got.content, calls(got)) == (START + "x" * 100, [("ping", "{}")])
