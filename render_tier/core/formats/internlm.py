"""InternLM 2 tool calls: ``<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>``.

Text after a call is not shown. Actions that are no plugin's (the interpreter's) are text.
"""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_BODY = JsonCallFormat(name_key="name", arguments_keys=("parameters", "arguments"), optional=True)
_END = {"<|action_end|>": "after"}

INTERNLM = ToolFormat(
    name="internlm",
    states={
        CONTENT: State(text=Region.CONTENT, on={"<|action_start|>": "action"}),
        "action": State(text=Region.CONTENT, on={"<|plugin|>": "call", "<|action_end|>": CONTENT}),
        "call": State(body=_BODY, on=_END, done="after", failed=CONTENT),
        "after": State(on={"<|action_start|>": "next_action"}),
        "next_action": State(on={"<|plugin|>": "next_call", "<|action_end|>": "after"}),
        "next_call": State(body=_BODY, on=_END, done="after", failed="after"),
    },
    blanks="drop_alone",
    bare_json=True,
)
