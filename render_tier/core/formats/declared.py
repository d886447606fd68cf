"""Simple families from data: ``[[reasoning]]`` and ``[[tool]]`` tables of a TOML or JSON file.

Reasoning between two markers, and calls between two markers whose text is one of `Body`. What needs more than
that is a table in Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from render_tier.core.body import BodyFormat
from render_tier.core.header_call import HeaderCallFormat
from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.python_calls import PythonCallsFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat

Body = Literal["json", "json_array", "header", "python"]
"""``json``: an object with a name and arguments. ``json_array``: an array of them. ``header``: a name, a
separator, and the arguments as JSON. ``python``: a list of Python calls."""


class DeclarationError(ValueError):
    """The data declares no parser; the message says which part of it is wrong."""


class _Reasoning(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``assumed``: an output that opens no block is reasoning up to ``end``. ``disabled_by``: values of
    chat_template_kwargs that turn reasoning off. ``ended_by``: markers of calls that end it too."""

    name: str
    start: str
    end: str
    assumed: bool = True
    trims: bool = False
    disabled_by: dict[str, bool | int | str] = {}
    ended_by: tuple[str, ...] = ()


class _Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``start`` opens a call, ``end`` (empty: none) closes it, ``section`` and ``section_end`` stand around
    all calls where a family has such markers. ``text_after``: text after the first call is shown."""

    name: str
    start: str
    end: str = ""
    section: str = ""
    section_end: str = ""
    body: Body = "json"
    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    separator: str = ""
    text_after: bool = True


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    reasoning: tuple[_Reasoning, ...] = ()
    tool: tuple[_Tool, ...] = ()


def declared_formats(data: Mapping[str, Any]) -> list[ReasoningFormat | ToolFormat]:
    """The formats that a parsed file declares. Raises DeclarationError."""
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise DeclarationError(str(error)) from None
    formats: list[ReasoningFormat | ToolFormat] = [*map(_reasoning, file.reasoning), *map(_tool, file.tool)]
    if not formats:
        raise DeclarationError("no [[reasoning]] and no [[tool]]")
    return formats


def _reasoning(given: _Reasoning) -> ReasoningFormat:
    if not given.name or not given.start or not given.end or given.start == given.end:
        raise DeclarationError(f"reasoning {given.name!r}: needs a name and two different markers")
    on = {given.start: "reasoning", given.end: CONTENT}
    opening = {} if given.assumed else {given.start: "reasoning"}
    return ReasoningFormat(
        name=given.name,
        states={"reasoning": State(text=Region.REASONING, on=on)},
        initial="reasoning" if given.assumed else CONTENT,
        opened="reasoning",
        start=given.start,
        end=given.end,
        ended_by_tools=frozenset({"reasoning"}),
        ended_by=given.ended_by,
        content_on={**opening, given.end: CONTENT},
        disabled_by=given.disabled_by,
        trims=given.trims,
    )


_BLANKS: Final = r"\s*"


def _body(given: _Tool) -> BodyFormat:
    call = JsonCallFormat(given.name_key, given.arguments_keys, optional=True)
    ends = tuple(filter(None, (given.end, given.section_end)))
    match given.body:
        case "json":
            return call
        case "json_array":
            return JsonCallsFormat(call)
        case "python":
            return PythonCallsFormat()
        case "header":
            if not given.separator:
                raise DeclarationError(f"tool {given.name!r}: body 'header' needs a separator")
            return HeaderCallFormat(separator=_BLANKS + re.escape(given.separator) + _BLANKS, ends=ends)


def _tool(given: _Tool) -> ToolFormat:
    if not given.name or not given.start:
        raise DeclarationError(f"tool {given.name!r}: needs a name and a start marker")
    if bool(given.section) != bool(given.section_end):
        raise DeclarationError(f"tool {given.name!r}: section and section_end go together")
    body = _body(given)
    outside = CONTENT if given.text_after else "after"
    leads = {given.section: "section"} if given.section else {given.start: "call"}
    inside = "section" if given.section else outside
    ends = {given.end: inside} if given.end else {}
    if given.section:
        ends[given.section_end] = outside
    states = {
        CONTENT: State(text=Region.CONTENT, on=leads),
        "call": State(body=body, on=ends, done="closing", failed="damaged"),
        "damaged": State(text=Region.CONTENT, on={**ends, given.start: "call"}),
        "closing": State(on={**ends, given.start: "call"}),
        "after": State(on=leads),
    }
    if given.section:
        states["section"] = State(on={given.start: "call", **ends})
    if not given.end and not given.section:
        states["closing"] = State(text=Region.CONTENT if given.text_after else Region.MARKUP, on=leads)
    return ToolFormat(name=given.name, states=states, blanks="drop_alone")
