"""Gemma 4: its notation of arguments, typed by the schema at every depth, and its channel of reasoning."""

from __future__ import annotations

import json

import pytest

from tests.support.reading import arguments, calls, read

FAMILY = "gemma4"
NAMES = {"tool": "gemma4", "reasoning": "gemma4"}


def call(body: str, name: str = "brew") -> str:
    return f"<|tool_call>call:{name}{{{body}}}<tool_call|>"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("", {}),
        ('leaf:<|"|>a, {b}: [c] "d"<|"|>,minutes:4', {"leaf": 'a, {b}: [c] "d"', "minutes": 4}),
        ('leaf:<|"|>}<|"|>', {"leaf": "}"}),
        ("sweet:false,grams:-0.5,note:null", {"sweet": False, "grams": -0.5, "note": None}),
        ("leaf:mint", {"leaf": "mint"}),
        ("unknown:12", {"unknown": "12"}),
        ("steps:[1,2 , 3]", {"steps": [1, 2, 3]}),
        ("opts:{deg:1.5,name:x}", {"opts": {"deg": 1.5, "name": "x"}}),
        ('opts:{a:[{b:<|"|>]}<|"|>}]}', {"opts": {"a": [{"b": "]}"}]}}),
        ('<|"|>leaf<|"|>: <|"|>x<|"|> , minutes : 2', {"leaf": "x", "minutes": 2}),
        ("leaf:", {"leaf": ""}),
        ("leaf", {}),
    ],
)
def test_arguments(body: str, value: object) -> None:
    assert json.loads(arguments(call(body), FAMILY)) == value


@pytest.mark.parametrize(
    "text", ["<|tool_call>:ping{}<tool_call|>", "<|tool_call>call: ping (a:1)<tool_call|>"]
)
def test_openers_that_models_shorten(text: str) -> None:
    got = read(text, tool=FAMILY)
    assert [call.name for call in got.calls] == ["ping"]
    assert json.loads(got.calls[0].arguments) in ({}, {"a": "1"})


@pytest.mark.parametrize(
    ("cut", "value"),
    [
        ('{leaf:<|"|>cut he', {"leaf": "cut he"}),
        ('{leaf:<|"|>x<|"|>,minutes:4', {"leaf": "x", "minutes": 4}),
        ('{opts:{a:<|"|>b', {"opts": {"a": "b"}}),
        ("{opts:{a:b,c:d", {"opts": {"a": "b"}}),
        ("{steps:[1,2", {"steps": [1]}),
        ('{leaf:<|"|>x<|"', {"leaf": "x"}),
        ("{le", {}),
        ("", {}),
    ],
)
def test_what_is_open_at_the_end_is_closed(cut: str, value: object) -> None:
    got = read(f"Hm. <|tool_call>call:brew{cut}", tool=FAMILY)
    assert got.content == "Hm."
    assert json.loads(got.calls[0].arguments) == value


def test_the_marker_ends_a_string_that_is_not_closed() -> None:
    got = read('<|tool_call>call:brew{leaf:<|"|>x}<tool_call|>' + call("", "ping"), tool=FAMILY)
    assert calls(got) == [("brew", '{"leaf": "x"}'), ("ping", "{}")]


def test_a_call_that_is_not_closed_ends_where_the_next_begins() -> None:
    got = read("<|tool_call>call:brew{minutes:1}" + call("", "ping"), tool=FAMILY)
    assert calls(got) == [("brew", '{"minutes": 1}'), ("ping", "{}")]


def test_a_marker_without_a_call_is_none() -> None:
    got = read("a <|tool_call>nothing<tool_call|> b<tool_call|>", tool=FAMILY)
    assert (got.content, got.calls) == ("a  b", [])


def test_a_value_too_deep_or_too_long_is_text() -> None:
    deep = "[" * 100 + "]" * 100
    assert json.loads(arguments(call(f"unknown:{deep}"), FAMILY)) == {"unknown": deep}
    long = "[" + "1," * 60 + "2]"
    assert json.loads(arguments(call(f"leaf:{long}"), FAMILY, hold_limit=40)) == {"leaf": long}


def test_the_channels_name_is_not_shown() -> None:
    got = read("<|channel>thought\nhm \n<channel|>Yes.", **NAMES)
    assert (got.reasoning, got.content) == ("hm", "Yes.")
    got = read("<|channel>thoughtful<channel|>Yes.", **NAMES)
    assert (got.reasoning, got.content) == ("thoughtful", "Yes.")
    assert read("<|channel>thought", **NAMES).reasoning == ""


def test_a_channel_that_is_not_opened_is_known_by_its_name_at_the_start() -> None:
    got = read("thought\nhm<channel|>Yes.", **NAMES)
    assert (got.reasoning, got.content) == ("hm", "Yes.")
    got = read("though\nhm<channel|>Yes.", **NAMES)
    assert (got.reasoning, got.content) == ("", "though\nhmYes.")


def test_a_call_ends_the_channel() -> None:
    got = read("<|channel>thought\nhm" + call("", "ping"), **NAMES)
    assert (got.reasoning, calls(got)) == ("hm", [("ping", "{}")])


def test_an_open_channel_of_the_prompt_goes_on() -> None:
    got = read("still thinking<channel|>Yes.", prompt=True, **NAMES)
    assert (got.reasoning, got.content) == ("still thinking", "Yes.")
