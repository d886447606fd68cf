"""LongCat tool calls: Hermes's objects between ``<longcat_tool_call>`` and ``</longcat_tool_call>``."""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_BODY = JsonCallFormat(name_key="name", arguments_keys=("arguments",))
_NEXT = {"<longcat_tool_call>": "next_call"}

LONGCAT = ToolFormat(
    name="longcat",
    states={
        CONTENT: State(text=Region.CONTENT, on={"<longcat_tool_call>": "call"}),
        "call": State(body=_BODY, done="closing", failed=CONTENT),
        "closing": State(on={"</longcat_tool_call>": "after", **_NEXT}),
        "after": State(on=_NEXT),
        "next_call": State(body=_BODY, done="closing", failed="after"),
    },
    blanks="drop_alone",
)
