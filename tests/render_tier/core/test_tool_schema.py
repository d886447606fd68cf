"""Types that schemas allow, whatever clients send as tools, and values that JSON cannot carry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.core.tool_schema import NO_TOOLS, ToolSchemas, allowed_types, dumps, quoted, retyped, typed


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, {"string"}),
        ({"type": "INT32 "}, {"integer"}),
        ({"type": ["string", "null", 5]}, {"string", "null"}),
        ({"type": 5}, {"string"}),
        (
            {"enum": ["a", 1, 1.5, True, None, [], {}]},
            {"string", "integer", "number", "boolean", "null", "array", "object"},
        ),
        ({"enum": []}, {"string"}),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "null"}, {}]}]}, {"integer", "null", "string"}),
        ({"anyOf": "x", "type": "dict"}, {"object"}),
        ({"$ref": "#/x"}, {"string"}),
    ],
)
def test_the_types_a_schema_allows(schema: dict[str, Any], types: set[str]) -> None:
    assert allowed_types(schema) == types


def test_a_schema_of_any_depth_is_read() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(20_000):
        schema = {"anyOf": [schema]}
    assert allowed_types(schema) == {"integer"}


@pytest.mark.parametrize(
    "tools",
    [None, [], ["x"], [{"function": None}], [{"function": {"name": 5}}], [{"type": "custom"}]],
)
def test_tools_that_are_none_are_left_out(tools: Any) -> None:
    schemas = ToolSchemas(tools)
    assert schemas.known("anything")
    assert schemas.schema("anything", "key") is None


@pytest.mark.parametrize(
    "parameters", [None, [], {}, {"properties": None}, {"properties": [1]}, {"properties": {"k": True}}]
)
def test_parameters_without_schemas_have_none(parameters: Any) -> None:
    schemas = ToolSchemas([{"function": {"name": "f", "parameters": parameters}}])
    assert schemas.known("f")
    assert not schemas.known("g")
    assert schemas.schema("f", "k") is None
    assert schemas.types(None) == {"string"}


def test_of_two_tools_with_one_name_the_first_counts() -> None:
    tools = [
        {"function": {"name": "f", "parameters": {"properties": {"k": {"type": kind}}}}}
        for kind in ("integer", "string")
    ]
    assert ToolSchemas(tools).schema("f", "k") == {"type": "integer"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_what_is_written_is_json_and_utf_8(value: Any) -> None:
    text = dumps(value)
    text.encode()
    json.loads(text, parse_constant=lambda name: pytest.fail(name))


@given(
    st.text(),
    st.frozensets(st.sampled_from(["string", "null", "integer", "number", "boolean", "object", "array"])),
)
def test_any_text_has_a_value_under_any_types(text: str, types: frozenset[str]) -> None:
    value = typed(text, types or frozenset({"string"}))
    assert json.loads(dumps(value)) == value


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_pieces_of_a_string_are_pieces_of_its_json(pieces: list[str]) -> None:
    joined = "".join(quoted(piece)[1:-1] for piece in pieces)
    assert json.loads(f'"{joined}"') == "".join(pieces)


def test_strings_inside_values_are_typed_too() -> None:
    schema = {
        "properties": {"a": {"items": {"type": "number"}}, "b": {"type": "string"}, "c": {"type": "boolean"}}
    }
    value = {"a": ["1", 2.0, "x"], "b": 5, "c": 1, "d": "1"}
    assert retyped(value, schema, NO_TOOLS) == {"a": [1, 2, "x"], "b": "5", "c": True, "d": "1"}
