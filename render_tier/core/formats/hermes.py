"""Hermes tool calls: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

Also Qwen2.5, QwQ and Qwen3. Text after the first call is not shown, as in the coupled server. What stands
between the markers and is not such an object is text.
"""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_BODY = JsonCallFormat(name_key="name", arguments_keys=("arguments",))

HERMES = ToolFormat(
    name="hermes",
    aliases=("qwen3_json",),
    states={
        CONTENT: State(text=Region.CONTENT, on={"<tool_call>": "call"}),
        "call": State(body=_BODY, done="closing", failed=CONTENT),
        "closing": State(on={"</tool_call>": "after", "<tool_call>": "next_call"}),
        "after": State(on={"<tool_call>": "next_call"}),
        "next_call": State(body=_BODY, done="closing", failed="after"),
    },
    blanks="drop_alone",
)
