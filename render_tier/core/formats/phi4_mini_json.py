"""Phi-4-mini tool calls: ``functools[{"name": ..., "arguments": {...}}]``; text around it is shown."""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_CALL = JsonCallFormat(name_key="name", arguments_keys=("arguments", "parameters"))

PHI4_MINI_JSON = ToolFormat(
    name="phi4_mini_json",
    states={
        CONTENT: State(text=Region.CONTENT, on={"functools[": "call"}),
        "call": State(body=JsonCallsFormat(_CALL, empty=False), done=CONTENT, failed=CONTENT),
    },
    blanks="drop_alone",
    bare_json=True,
    keeps_special_tokens=False,
)
