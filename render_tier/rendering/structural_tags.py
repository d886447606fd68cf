"""Grammars that hold a model to its tool-call format, in the JSON that xgrammar's structural tags have.

The tags allow exactly the offered tools; what arguments may hold is a schema, or ``true`` for any JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
Demand = Literal["auto", "required", "forced"]
"""A call is allowed, at least one is demanded, exactly one of the given tools is demanded."""


@dataclass(frozen=True)
class CallableTool:
    name: str
    arguments: Json | Literal[True]
    """JSON schema of the arguments, or True when any JSON will do."""


def json_schema(schema: Json | bool) -> Json:
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": "json",
        "any_order": False,
        "max_whitespace_cnt": None,
        "excludes": [],
    }


def tag(begin: str, content: Json, end: str) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered_tags(triggers: Sequence[str], tags: Sequence[Json], *, single: bool) -> Json:
    """Free text; once a trigger appears, one of the tags."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": False,
        "stop_after_first": single,
        "excludes": [],
    }


def demanded_tags(tags: Sequence[Json], *, single: bool) -> Json:
    """One tag or more, and nothing else."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": "",
        "at_least_one": True,
        "stop_after_first": single,
    }


def either(elements: Sequence[Json]) -> Json:
    return {"type": "or", "elements": list(elements)}


def _hermes(tools: Sequence[CallableTool], demand: Demand, single: bool) -> Json:
    """``<tool_call>`` with or without line breaks around the object."""
    tags = [
        tag(
            f'<tool_call>{gap}{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": ',
            json_schema(tool.arguments),
            f"}}{gap}</tool_call>",
        )
        for tool in tools
        for gap in ("\n", "")
    ]
    if demand == "auto":
        return triggered_tags(["<tool_call>"], tags, single=single)
    return demanded_tags(tags, single=single or demand == "forced")


TOOL_CALL_TAGS: Mapping[str, Callable[[Sequence[CallableTool], Demand, bool], Json]] = {
    "hermes": _hermes,
    "qwen3_json": _hermes,
}
"""By tool parser name; families without an entry are not constrained."""
