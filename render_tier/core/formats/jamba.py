"""Jamba tool calls: an array of objects in ``<tool_calls>``; text after it is not shown."""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_BODY = JsonCallsFormat(JsonCallFormat(name_key="name", arguments_keys=("arguments",)))
_END = {"</tool_calls>": "after"}

JAMBA = ToolFormat(
    name="jamba",
    states={
        CONTENT: State(text=Region.CONTENT, on={"<tool_calls>": "calls"}),
        "calls": State(body=_BODY, on=_END, done="after", failed=CONTENT),
        "after": State(on={"<tool_calls>": "more_calls"}),
        "more_calls": State(body=_BODY, on=_END, done="after", failed="after"),
    },
    blanks="drop_alone",
    bare_json=True,
)
