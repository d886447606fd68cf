"""Granite 4 tool calls: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

Text around them is shown.
"""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

GRANITE4 = ToolFormat(
    name="granite4",
    states={
        CONTENT: State(text=Region.CONTENT, on={"<tool_call>": "call"}),
        "call": State(
            body=JsonCallFormat(name_key="name", arguments_keys=("arguments",)),
            done="closing",
            failed=CONTENT,
        ),
        "closing": State(on={"</tool_call>": CONTENT, "<tool_call>": "call"}),
    },
    blanks="drop_alone",
    bare_json=True,
)
