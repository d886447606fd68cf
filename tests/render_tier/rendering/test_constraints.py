"""Structured outputs, response formats and tool choice as one constraint for the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from render_tier.core.formats import tool_format
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.constraints import requested_constraint, with_tool_choice

SCHEMA = {"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


F = tool("f", parameters=SCHEMA)
STRICT = tool("s", parameters=SCHEMA, strict=True)


def constraint(parser: str | None = "hermes", level: str = "auto", **fields: Any) -> Any:
    request = ChatCompletionRequest.parse({"messages": [], **fields})
    return with_tool_choice(
        request, requested_constraint(request), tool_format(parser) if parser else None, level
    )


def tag(**fields: Any) -> dict[str, Any]:
    found = constraint(**fields)
    assert found.keys() == {"structural_tag"}
    return json.loads(found["structural_tag"])["format"]  # type: ignore[no-any-return]


def allowed(tag_format: dict[str, Any]) -> dict[str, Any]:
    """Tool name → schema of its arguments."""
    return {item["begin"].split('"')[3]: item["content"]["json_schema"] for item in tag_format["tags"]}


class TestFormats:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, None),
            ({"response_format": {"type": "text"}}, None),
            ({"response_format": {"type": "json_object"}}, {"json_object": True}),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
                {"json": SCHEMA},
            ),
            ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
            ({"structured_outputs": {"choice": ["a"]}}, {"choice": ["a"]}),
            ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": json.dumps(SCHEMA)}),
            (
                {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
                {"json": SCHEMA, "disable_any_whitespace": True},
            ),
        ],
    )
    def test_lowered(self, fields: dict[str, Any], expected: Any) -> None:
        assert constraint(**fields) == expected

    def test_structural_tag_travels_as_text(self) -> None:
        given = {"type": "structural_tag", "format": {"type": "any_text"}, "extra": 1}
        assert json.loads(constraint(response_format=given)["structural_tag"]) == given

    @pytest.mark.parametrize(
        "structured",
        [
            {},
            {"regex": "a", "grammar": "root ::= x"},
            {"regex": "("},
            {"regex": "*a"},
            {"regex": "[a"},
            {"json": "{bad"},
            {"json": "5"},
            {"json": {"type": "strin"}},
            {"json": {"properties": {"a": {"items": {"type": "int"}}}}},
            {"json": {"anyOf": [{"type": 5}]}},
            {"choice": []},
            {"grammar": "  "},
            {"structural_tag": "{bad"},
            {"structural_tag": "[]"},
            {"structural_tag": '{"structures": 5, "triggers": []}'},
        ],
        ids=str,
    )
    def test_what_no_engine_can_compile_is_refused(self, structured: dict[str, Any]) -> None:
        with pytest.raises(BadRequest):
            constraint(structured_outputs=structured)

    @pytest.mark.parametrize(
        "structured",
        [{"regex": r"\p{L}+(?>a)++"}, {"json": {"type": "array", "items": True}}, {"json": {"$ref": "#/x"}}],
        ids=str,
    )
    def test_what_only_an_engine_can_judge_passes(self, structured: dict[str, Any]) -> None:
        assert constraint(structured_outputs=structured) == structured

    def test_deep_schema_is_refused(self) -> None:
        schema: dict[str, Any] = {"type": "object"}
        for _ in range(70):
            schema = {"items": schema}
        with pytest.raises(BadRequest, match="nested too deeply"):
            constraint(structured_outputs={"json": schema})

    def test_two_sources_must_agree_on_one_kind(self) -> None:
        with pytest.raises(BadRequest, match="one kind"):
            constraint(structured_outputs={"regex": "a"}, response_format={"type": "json_object"})


class TestToolChoice:
    def test_nothing_to_hold_to(self) -> None:
        assert constraint(tools=[F]) is None
        assert constraint(tools=[F], tool_choice="none") is None
        assert constraint(tools=[STRICT], parser=None) is None

    def test_required_demands_calls_with_schemas(self) -> None:
        found = tag(tools=[F, tool("g")], tool_choice="required")
        assert (found["type"], found["at_least_one"], found["stop_after_first"]) == (
            "tags_with_separator",
            True,
            False,
        )
        assert allowed(found) == {"f": SCHEMA, "g": True}

    def test_named_demands_one_call_of_that_tool(self) -> None:
        found = tag(tools=[F, tool("g")], tool_choice={"type": "function", "function": {"name": "g"}})
        assert found["stop_after_first"] is True
        assert allowed(found) == {"g": True}

    def test_auto_frees_the_arguments_of_tools_that_are_not_strict(self) -> None:
        found = tag(tools=[F, STRICT])
        assert found["type"] == "triggered_tags"
        assert allowed(found) == {"f": True, "s": SCHEMA}

    def test_server_level(self) -> None:
        assert allowed(tag(tools=[F], level="function")) == {"f": True}
        assert allowed(tag(tools=[F], level="parameter")) == {"f": SCHEMA}

    def test_no_parallel_calls(self) -> None:
        assert tag(tools=[F], parallel_tool_calls=False)["stop_after_first"] is True
        assert tag(tools=[F], tool_choice="required", parallel_tool_calls=False)["stop_after_first"] is True

    def test_auto_with_a_format_allows_either(self) -> None:
        json_only = {"response_format": {"type": "json_object"}}
        assert constraint(tools=[F], **json_only) == {"json_object": True}
        assert constraint(tools=[F], parallel_tool_calls=False, **json_only) == {"json_object": True}
        either = tag(tools=[STRICT], **json_only)
        assert either["type"] == "or"
        calls, formatted = either["elements"]
        assert calls["at_least_one"] is True
        assert formatted["json_schema"] == {"type": "object"}

    @pytest.mark.parametrize(
        ("structured", "kind"),
        [({"regex": "a"}, "regex"), ({"choice": ["a"]}, "or"), ({"grammar": "root ::= x"}, "grammar")],
    )
    def test_other_formats_beside_calls(self, structured: dict[str, Any], kind: str) -> None:
        assert tag(tools=[STRICT], structured_outputs=structured)["elements"][1]["type"] == kind

    def test_demanded_calls_replace_a_format(self) -> None:
        found = tag(tools=[F], tool_choice="required", response_format={"type": "json_object"})
        assert found["type"] == "tags_with_separator"

    def test_tool_name_is_a_json_string_in_the_tag(self) -> None:
        name = 'x"}\n</tool_call> é'
        (first, _) = tag(tools=[tool(name)], tool_choice="required")["tags"]
        whole = first["begin"] + "{}" + first["end"]
        assert json.loads(whole.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] == name
