"""What an engine must hold the output to: structured outputs, response format and tool choice as one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from render_tier.core.table import ToolFormat
from render_tier.protocol.chat import ChatCompletionRequest, Tool
from render_tier.protocol.request_fields import (
    MAX_SCHEMA_NESTING,
    ResponseFormat,
    SamplingFields,
    StructuredOutputs,
    check_nesting,
    structural_tag_json,
)
from render_tier.protocol.validation import invalid
from render_tier.rendering.harmony_tags import HarmonyCalls
from render_tier.rendering.structural_tags import (
    EMPTY_OBJECT,
    TOOL_CALL_TAGS,
    CallableTool,
    Json,
    ToolGrammar,
    calls_as_json,
    either,
    json_schema,
    listed_calls,
    tagged,
)

GRAMMARS: Mapping[str, ToolGrammar] = {**TOOL_CALL_TAGS, "openai": HarmonyCalls()}
"""By the name of the tool format; families without one are held to plain JSON (`ToolFormat.bare_json`,
`ToolFormat.bare_list`) or not at all."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
SCHEMA_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMA_MAPS = ("properties", "$defs", "definitions", "patternProperties")
SCHEMA_CHILDREN = ("items", "additionalProperties", "not", "if", "then", "else")
SURELY_WRONG_REGEX = re.compile(
    r"unterminated|unbalanced parenthesis|nothing to repeat|bad escape \(end of pattern\)|missing \)"
)
"""Faults that no regular expression dialect accepts; others are left to the engine's own compiler."""


def requested_constraint(request: SamplingFields) -> Json | None:
    """``structured_outputs`` with ``response_format`` laid over it, holding exactly one kind of constraint.

    Raises BadRequest when it holds none, several, or one that no engine can compile.
    """
    constraint = _as_given(request.structured_outputs)
    overlay = _from_response_format(request.response_format)
    if overlay is not None:
        constraint = {**(constraint or {}), **overlay}
    if constraint is None:
        return None
    kinds = [kind for kind in KINDS if constraint.get(kind) is not None]
    if len(kinds) != 1:
        fault = "multiple are specified" if kinds else "none are specified"
        asked = "You can only use" if kinds else "You must use"
        raise invalid(f"{asked} one kind of structured outputs constraint but {fault}: {kinds}")
    _check_constraint(constraint, kinds[0])
    return {name: value for name, value in constraint.items() if value is not None and value is not False}


def _as_given(given: StructuredOutputs | None) -> Json | None:
    return None if given is None else given.model_dump(by_alias=True)


def _from_response_format(given: ResponseFormat | None) -> Json | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return {"json_object": True}
    if given.type == "json_schema":
        return {"json": given.json_schema.json_schema if given.json_schema is not None else None}
    return {"structural_tag": structural_tag_json(given)}


def _check_constraint(constraint: Json, kind: str) -> None:
    value = constraint[kind]
    if kind == "json":
        schema = decoded_schema(value)
        check_nesting(schema, MAX_SCHEMA_NESTING)
        _check_schema(schema)
    elif kind == "choice" and not value:
        raise invalid("Choice '[]' cannot be an empty list", "structured_outputs")
    elif kind == "regex":
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            if SURELY_WRONG_REGEX.search(str(error)):
                raise invalid(f"Invalid regex in structured outputs: {error}", "structured_outputs") from None
    elif kind == "grammar" and not value.strip():
        raise invalid("Invalid grammar specification: it is empty.", "structured_outputs")


def decoded_schema(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise invalid(f"Invalid JSON schema in structured outputs: {error}", "structured_outputs") from None
    if not isinstance(schema, dict | bool):
        raise invalid("Invalid JSON schema in structured outputs: not an object", "structured_outputs")
    return schema


def _check_schema(schema: Any) -> None:
    """Types that JSON Schema does not have, wherever a subschema may stand. Nesting is already bounded."""
    if not isinstance(schema, dict):
        return
    declared = schema.get("type")
    for name in declared if isinstance(declared, list) else [declared]:
        if name is not None and (not isinstance(name, str) or name not in SCHEMA_TYPES):
            raise invalid(f"Invalid JSON schema: unknown type {str(name)[:100]!r}", "structured_outputs")
    for key in SCHEMA_LISTS:
        children = schema.get(key)
        for child in children if isinstance(children, list) else ():
            _check_schema(child)
    for key in SCHEMA_MAPS:
        children = schema.get(key)
        for child in children.values() if isinstance(children, dict) else ():
            _check_schema(child)
    for key in SCHEMA_CHILDREN:
        _check_schema(schema.get(key))


def with_tool_choice(
    request: ChatCompletionRequest, constraint: Json | None, tool: ToolFormat | None, strict_level: str
) -> Json | None:
    """``constraint`` joined with what ``tool_choice`` demands in the family's format.

    "auto" is constrained only when some tool is strict, calls must not be parallel or the server's level says
    so; "required" and named choices always are, with their argument schemas, and replace other constraints.
    Raises BadRequest for tools whose schemas cannot stand together.
    """
    choice = request.tool_choice
    if tool is None or not request.tools or choice is None or choice == "none":
        return constraint
    single = request.parallel_tool_calls is False
    name = request.forced_function
    chosen = [each for each in request.tools if name is None or each.function.name == name]
    grammar = GRAMMARS.get(tool.name)
    if grammar is None:
        if choice == "auto" or not (tool.bare_json or tool.bare_list):
            return constraint
        return _as_bare_json(chosen, name, single) if tool.bare_json else _as_bare_list(request, constraint)
    if choice == "auto":
        level = grammar.strict_level if strict_level == "auto" else strict_level
        return _auto_choice(request, constraint, grammar, level, single)
    tools = [_callable(each, enforced=True) for each in chosen]
    return tagged(grammar.build(tools, "required" if name is None else "forced", single))


def _as_bare_json(tools: Sequence[Tool], named: str | None, single: bool) -> Json:
    if named is not None:
        return {"json": tools[0].function.parameters or EMPTY_OBJECT}
    declared = [(tool.function.name, tool.function.parameters) for tool in tools]
    try:
        return {"json": calls_as_json(declared, single=single)}
    except ValueError as error:
        raise invalid(str(error), "tools") from None


def _as_bare_list(request: ChatCompletionRequest, constraint: Json | None) -> Json | None:
    """Calls as the family lists them, without the marker in front; only where no structured outputs or
    structural tag are asked for."""
    given = request.response_format
    if request.structured_outputs is not None or (given is not None and given.type == "structural_tag"):
        return constraint
    assert request.tools is not None
    name = request.forced_function
    functions = [tool.function for tool in request.tools if name in (None, tool.function.name)]
    calls = listed_calls([(each.name, each.parameters) for each in functions], single=name is not None)
    return {"json": calls}


def _auto_choice(
    request: ChatCompletionRequest,
    constraint: Json | None,
    grammar: ToolGrammar,
    strict_level: str,
    single: bool,
) -> Json | None:
    assert request.tools is not None
    any_strict = any(tool.function.strict for tool in request.tools)
    if not any_strict and strict_level == "auto" and not (single and constraint is None):
        return constraint
    tools = [
        _callable(tool, enforced=bool(tool.function.strict) or strict_level == "parameter")
        for tool in request.tools
    ]
    if constraint is None:
        return tagged(grammar.build(tools, "auto", single))
    return tagged(either([grammar.build(tools, "required", single), as_format(constraint)]))


def _callable(tool: Tool, *, enforced: bool) -> CallableTool:
    declared = tool.function.parameters
    return CallableTool(tool.function.name, _schema_of(tool) if enforced else True, declared)


def _schema_of(tool: Tool) -> Json | Literal[True]:
    return True if tool.function.parameters is None else tool.function.parameters


def as_format(constraint: Json) -> Json:
    """A constraint as a structural tag's format, to stand beside others."""
    if constraint.get("json_object"):
        return json_schema({"type": "object"})
    if "json" in constraint:
        return json_schema(decoded_schema(constraint["json"]))
    if "regex" in constraint:
        return {"type": "regex", "pattern": constraint["regex"]}
    if "choice" in constraint:
        return either([{"type": "const_string", "value": value} for value in constraint["choice"]])
    if "grammar" in constraint:
        return {"type": "grammar", "grammar": constraint["grammar"]}
    tag = json.loads(constraint["structural_tag"])
    if "structures" not in tag:
        return tag["format"]  # type: ignore[no-any-return]
    return {
        "type": "triggered_tags",
        "triggers": tag["triggers"],
        "tags": [
            {
                "type": "tag",
                "begin": item["begin"],
                "content": json_schema(item.get("schema", True)),
                "end": item["end"],
            }
            for item in tag["structures"]
        ],
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": [],
    }
