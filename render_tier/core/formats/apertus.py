"""Apertus tool calls: ``<|tools_prefix|>[{"name": {...}}, ...]<|tools_suffix|>``, the name being the key."""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_BODY = JsonCallsFormat(JsonCallFormat(name_key="", arguments_keys=()))
_MARKERS = {"<|tools_suffix|>": CONTENT, "<|tools_prefix|>": "calls"}

APERTUS = ToolFormat(
    name="apertus",
    states={
        CONTENT: State(text=Region.CONTENT, on={"<|tools_prefix|>": "calls"}),
        "calls": State(body=_BODY, on=_MARKERS, done="closing", failed=CONTENT),
        "closing": State(on=_MARKERS),
    },
    blanks="trim",
    bare_json=True,
)
