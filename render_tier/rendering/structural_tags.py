"""Grammars that hold a model to its tool-call format, in the JSON that xgrammar's structural tags have.

The tags allow exactly the offered tools; what arguments may hold is a schema, or ``true`` for any JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

Json = dict[str, Any]
Demand = Literal["auto", "required", "forced"]
"""A call is allowed, at least one is demanded, exactly one of the given tools is demanded."""


@dataclass(frozen=True)
class CallableTool:
    name: str
    arguments: Json | Literal[True]
    """JSON schema of the arguments, or True when any JSON will do."""
    declared: Json | None = None
    """The schema that the client gave, enforced or not."""


def json_schema(schema: Json | bool, style: str = "json") -> Json:
    """``style``: how a family writes the object that the schema describes."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }


def tag(begin: str, content: Json, end: str | Sequence[str]) -> Json:
    """``end``: what stands at its end, or any of several."""
    ends = end if isinstance(end, str) else list(end)
    return {"type": "tag", "begin": begin, "content": content, "end": ends}


def triggered_tags(
    trigger: str, tags: Sequence[Json], *, single: bool, excludes: Sequence[str] = (), demanded: bool = False
) -> Json:
    """Free text; once the trigger appears, one of the tags."""
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": list(tags),
        "at_least_one": demanded,
        "stop_after_first": single,
        "excludes": list(excludes),
    }


def demanded_tags(tags: Sequence[Json], *, single: bool, separator: str = "") -> Json:
    """One tag or more, and nothing else."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def text(value: str) -> Json:
    return {"type": "const_string", "value": value}


def sequence(*elements: Json) -> Json:
    return {"type": "sequence", "elements": list(elements)}


def either(elements: Sequence[Json]) -> Json:
    return {"type": "or", "elements": list(elements)}


def tagged(tag_format: Json) -> Json:
    """The constraint that holds an answer to the format."""
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": tag_format})}


THINK = ("<think>", "</think>")
Call = Callable[[CallableTool], list[Json]]
"""The ways in which a call of a tool may be written."""


class ToolGrammar(Protocol):
    """``strict_level``: the server's level where the operator sets none."""

    @property
    def strict_level(self) -> Literal["auto", "function"]: ...

    def build(self, tools: Sequence[CallableTool], demand: Demand, single: bool) -> Json:
        """``single``: at most one call."""
        ...


@dataclass(frozen=True)
class CallGrammar:
    """How one family writes its calls.

    ``trigger``: what begins a call in free text. ``excludes``: what free text may not hold. ``section``: what
    stands around all calls of an answer; ``lead`` before it when there is no text in front; ``separator``
    between calls. ``shape``: the form that a demanded call takes: the same as in free text but at least once
    ("triggered"), a list of calls ("listed"), or a section as a sequence ("spelled") or a tag ("tagged").
    ``one_listed``: a single demanded call is a list of one.
    """

    call: Call
    trigger: str
    shape: Literal["triggered", "listed", "spelled", "tagged"]
    excludes: tuple[str, ...] = ()
    section: tuple[str, str] | None = None
    lead: str = ""
    separator: str = ""
    one_listed: bool = False
    strict_level: Literal["auto", "function"] = "auto"

    def build(self, tools: Sequence[CallableTool], demand: Demand, single: bool) -> Json:
        """``single``: at most one call."""
        calls = [call for tool in tools for call in self.call(tool)]
        if demand == "auto":
            return self._optional(calls, single)
        if self.shape == "triggered" or self.section is None:
            return self._unsectioned(calls, demand, single)
        opening, closing = self.section
        if self.shape == "tagged":
            if demand == "forced":
                call = calls[0]
                return {**call, "begin": opening + call["begin"], "end": call["end"] + closing}
            return tag(opening, demanded_tags(calls, single=single, separator=self.separator), closing)
        listed: Json = demanded_tags(calls, single=single or demand == "forced", separator=self.separator)
        if demand == "forced" and not self.one_listed:
            listed = calls[0]
        return sequence(text(self.lead + opening), listed, text(closing))

    def _optional(self, calls: list[Json], single: bool) -> Json:
        if self.section is not None:
            opening, closing = self.section
            calls = [tag(opening, demanded_tags(calls, single=single, separator=self.separator), closing)]
        return triggered_tags(self.trigger, calls, single=single, excludes=self.excludes)

    def _unsectioned(self, calls: list[Json], demand: Demand, single: bool) -> Json:
        if demand == "forced":
            return demanded_tags(calls, single=True) if self.one_listed else calls[0]
        if self.shape == "triggered":
            return triggered_tags(self.trigger, calls, single=single, excludes=self.excludes, demanded=True)
        return demanded_tags(calls, single=single)


def written(before: str, after: str, end: str, *, style: str = "json", in_json: bool = False) -> Call:
    """Calls of ``before``, the name (``in_json``: inside a JSON string), ``after``, arguments, ``end``."""

    def call(tool: CallableTool) -> list[Json]:
        name = json.dumps(tool.name, ensure_ascii=False)[1:-1] if in_json else tool.name
        return [tag(f"{before}{name}{after}", json_schema(tool.arguments, style), end)]

    return call


def _hermes(name: str) -> CallGrammar:
    """With or without line breaks around the object."""
    ways = [
        written(f'<{name}>{gap}{{"name": "', '", "arguments": ', f"}}{gap}</{name}>", in_json=True)
        for gap in ("\n", "")
    ]
    return CallGrammar(
        call=lambda tool: [call for way in ways for call in way(tool)],
        trigger=f"<{name}>",
        shape="listed",
        one_listed=True,
    )


def _kimi_call(tool: CallableTool) -> list[Json]:
    """Calls are numbered over the whole conversation, so any number will do."""
    number, marker = {"type": "regex", "pattern": r"\d+"}, text("<|tool_call_argument_begin|>")
    arguments = sequence(number, marker, json_schema(tool.arguments))
    return [tag(f"<|tool_call_begin|>functions.{tool.name}:", arguments, "<|tool_call_end|>")]


GLM_MARKERS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
GLM_OPEN_SCHEMA = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")


def _glm_call(tool: CallableTool) -> list[Json]:
    """Where the schema is not enforced, keys and plain types of values still are, if the schema is simple
    enough to tell them."""
    declared = tool.declared or {}
    properties = declared.get("properties")
    open_schema = declared.get("additionalProperties") is True or any(
        key in declared for key in GLM_OPEN_SCHEMA
    )
    content = json_schema(tool.arguments, "glm_xml")
    if tool.arguments is True and isinstance(properties, dict) and properties and not open_schema:
        pairs = [
            sequence(
                text(f"<arg_key>{key}</arg_key><arg_value>"),
                _glm_value(schema if isinstance(schema, dict) else {}),
                text("</arg_value>"),
            )
            for key, schema in properties.items()
        ]
        content = {"type": "star", "content": _one_of(pairs)}
    return [tag(f"<tool_call>{tool.name}", content, "</tool_call>")]


def _glm_value(schema: Json) -> Json:
    """Strings stand as they are, everything else as JSON."""
    free = {"type": "any_text", "excludes": list(GLM_MARKERS), "max_tokens": None, "max_chars": None}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return _one_of([text(value if isinstance(value, str) else json.dumps(value)) for value in choices])
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    values = [json_schema({"type": each}) for each in kinds if each not in (None, "string")]
    if len(values) < len(kinds) or not kinds:
        values.append(free)
    return _one_of(values)


def _one_of(elements: Sequence[Json]) -> Json:
    return elements[0] if len(elements) == 1 else either(elements)


DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_V3 = CallGrammar(
    call=written("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
    trigger=DEEPSEEK_SECTION[0],
    shape="tagged",
    excludes=THINK,
    section=DEEPSEEK_SECTION,
    separator="\n",
)
DEEPSEEK_V31 = replace(
    DEEPSEEK_V3,
    call=written("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    separator="",
)


def _dsml(section: str) -> CallGrammar:
    return CallGrammar(
        call=written('<｜DSML｜invoke name="', '">\n', "</｜DSML｜invoke>\n", style="deepseek_xml"),
        trigger=f"<｜DSML｜{section}>",
        shape="spelled",
        excludes=THINK,
        section=(f"<｜DSML｜{section}>\n", f"</｜DSML｜{section}>"),
        lead="\n\n",
    )


QWEN3_CODER = CallGrammar(
    call=written("<tool_call>\n<function=", ">\n", "\n</function>\n</tool_call>", style="qwen_xml"),
    trigger="<tool_call>\n<function=",
    shape="triggered",
    excludes=THINK,
)
LLAMA = CallGrammar(
    call=written('{"name": "', '", "parameters": ', "}", in_json=True),
    trigger='{"name": ',
    shape="triggered",
    excludes=THINK,
)
GLM = CallGrammar(
    call=_glm_call,
    trigger="<tool_call>",
    shape="listed",
    excludes=tuple(marker for marker in GLM_MARKERS if marker != "<tool_call>"),
    strict_level="function",
)
TOOL_CALL_TAGS: Mapping[str, CallGrammar] = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "glm47": GLM,
    "hermes": _hermes("tool_call"),
    "kimi_k2": CallGrammar(
        call=_kimi_call,
        trigger="<|tool_calls_section_begin|>",
        shape="spelled",
        excludes=(*THINK, "<|tool_call_begin|>"),
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    "llama3_json": LLAMA,
    "longcat": _hermes("longcat_tool_call"),
    "mimo": CallGrammar(
        call=written("<tool_call><function=", ">", "</function></tool_call>", style="qwen_xml"),
        trigger="<tool_call>",
        shape="triggered",
        excludes=(*THINK, "</tool_call>", "<function="),
    ),
    "minimax_m2": CallGrammar(
        call=written('<invoke name="', '">\n', "</invoke>\n", style="minimax_xml"),
        trigger="<minimax:tool_call>",
        shape="spelled",
        excludes=THINK,
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        lead="\n",
        one_listed=True,
    ),
    "qwen3_coder": QWEN3_CODER,
    "step3p5": QWEN3_CODER,
}
"""By the name of the tool format."""


def calls_as_json(tools: Sequence[tuple[str, Json | None]], *, single: bool) -> Json:
    """The schema of a list of calls, each an object of name and parameters, for families that are held to
    JSON. Definitions of all tools stand together, since references lead there.

    Raises ValueError for two definitions of one name that differ, or that are no object.
    """
    definitions: Json = {}
    variants = []
    for name, parameters in tools:
        schema = dict(parameters or EMPTY_OBJECT)
        own = schema.pop("$defs", {})
        if not isinstance(own, dict):
            raise ValueError(f"`$defs` in the parameters of tool {name!r} must be an object")
        for key, definition in own.items():
            if definitions.setdefault(key, definition) != definition:
                raise ValueError(f"tool definition {key!r} has multiple schemas, which is not supported")
        called = {"name": {"type": "string", "enum": [name]}, "parameters": schema}
        variants.append({"properties": called, "required": ["name", "parameters"]})
    listed: Json = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": variants}}
    if single:
        listed["maxItems"] = 1
    return {**listed, "$defs": definitions} if definitions else listed


def listed_calls(tools: Sequence[tuple[str, Json | None]], *, single: bool) -> Json:
    """The schema of a list of calls, each an object of name and arguments."""
    variants = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [name]},
                "arguments": parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
        }
        for name, parameters in tools
    ]
    listed: Json = {"type": "array", "minItems": 1}
    if single:
        listed["maxItems"] = 1
    return {**listed, "items": {"type": "object", "anyOf": variants}}


EMPTY_OBJECT: Json = {"type": "object", "properties": {}}
