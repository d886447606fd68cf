"""Hunyuan A13B reasoning and tool calls.

``<think>\\n`` ... ``\\n</think>\\n<answer>\\n`` ... ``\\n</answer>``; what follows the answer is not shown.
Calls are an array of objects in ``<tool_calls>``; text after it is not shown. The template's speaker mark
``助手：`` is not part of the answer.
"""

from __future__ import annotations

from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat

HUNYUAN_A13B_REASONING = ReasoningFormat(
    name="hunyuan_a13b",
    states={
        "opening": State(text=Region.CONTENT, on={"<think>\n": "reasoning", "\n</answer>": "answered"}),
        "reasoning": State(text=Region.REASONING, on={"\n</think>\n": "answering"}),
        "answering": State(text=Region.CONTENT, on={"<answer>\n": CONTENT, "\n</answer>": "answered"}),
        "answered": State(),
    },
    initial="opening",
    opened="reasoning",
    start="<think>",
    end="</think>",
    ended_by_tools=frozenset({"opening", "answering"}),
    content_on={"\n</answer>": "answered"},
    disabled_by={"enable_thinking": False},
    keeps_special_tokens=False,
)

_BODY = JsonCallsFormat(JsonCallFormat(name_key="name", arguments_keys=("arguments",)))
_CALLS = {"<tool_calls>": "calls"}

HUNYUAN_A13B = ToolFormat(
    name="hunyuan_a13b",
    states={
        CONTENT: State(text=Region.CONTENT, on={"助手：": "spoken", **_CALLS}),
        "spoken": State(text=Region.CONTENT, on=_CALLS),
        "calls": State(body=_BODY, done="after", failed="spoken"),
        "after": State(on={"<tool_calls>": "more_calls"}),
        "more_calls": State(body=_BODY, done="after", failed="after"),
    },
    blanks="drop_alone",
    bare_json=True,
)
