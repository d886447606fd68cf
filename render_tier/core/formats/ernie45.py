"""ERNIE 4.5 reasoning and tool calls.

Reasoning ends with ``</think>``. The answer after it may stand in ``<response>`` ... ``</response>``; then
the white space before that and all after it are not shown. Calls are objects in ``<tool_call>``; text after
the first one is not shown.
"""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat

ERNIE45_REASONING = ReasoningFormat(
    name="ernie45",
    states={
        "reasoning": State(text=Region.REASONING, on={"<think>": "reasoning", "</think>": CONTENT}),
        "response": State(text=Region.CONTENT, on={"</response>": "answered"}, drops_blanks=True),
        "answered": State(on={"<response>": "response"}),
    },
    initial="reasoning",
    opened="reasoning",
    start="<think>",
    end="</think>",
    ended_by_tools=frozenset({"response", "answered"}),
    content_on={"<response>": "response"},
    disabled_by={"enable_thinking": False},
)

_BODY = JsonCallFormat(name_key="name", arguments_keys=("arguments",), optional=True)

ERNIE45 = ToolFormat(
    name="ernie45",
    states={
        CONTENT: State(text=Region.CONTENT, on={"<tool_call>": "call"}),
        "call": State(body=_BODY, done="after", failed=CONTENT),
        "after": State(on={"<tool_call>": "next_call"}),
        "next_call": State(body=_BODY, done="after", failed="after"),
    },
    blanks="trim",
    bare_json=True,
)
