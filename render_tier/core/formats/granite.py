"""Granite 3 reasoning in words, and tool calls as an array after a marker.

``Here is my thought process:`` ... ``Here is my response:``, and ``<|tool_call|>[{"name": ...,
"arguments": {...}}]`` (3.0; in 3.1 the marker is the text ``<tool_call>``). The array has no closing marker,
and text after it is shown. Text before the thought process is shown too; the words mean nothing after it.
"""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat

GRANITE_REASONING = ReasoningFormat(
    name="granite",
    states={
        "opening": State(
            text=Region.CONTENT,
            on={f"{words} my thought process:": "reasoning" for words in ("Here is", "Here's")},
        ),
        "reasoning": State(
            text=Region.REASONING, on={f"{words} my response:": CONTENT for words in ("Here is", "Here's")}
        ),
    },
    initial="opening",
    opened="reasoning",
    start="Here is my thought process:",
    end="Here is my response:",
    ended_by_tools=frozenset({"opening", "reasoning"}),
    ended_by=("<|tool_call|>", "<tool_call>"),
    keeps_special_tokens=False,
)

_BODY = JsonCallsFormat(JsonCallFormat(name_key="name", arguments_keys=("arguments",), optional=True))

GRANITE = ToolFormat(
    name="granite",
    states={
        CONTENT: State(text=Region.CONTENT, on={"<|tool_call|>": "call", "<tool_call>": "call"}),
        "call": State(body=_BODY, done=CONTENT, failed=CONTENT),
    },
    blanks="trim",
    none_drops=True,
    bare_json=True,
)
