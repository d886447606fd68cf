"""Granite 4.2 reasoning: ``<think>`` ... ``</think>``; the newlines before the answer are not part of it."""

from __future__ import annotations

from render_tier.core.gap import GapFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State

GRANITE_THINKING = ReasoningFormat(
    name="granite_thinking_parser",
    states={
        "reasoning": State(text=Region.REASONING, on={"<think>": "reasoning", "</think>": "gap"}),
        "gap": State(body=GapFormat("\n"), done=CONTENT, failed=CONTENT),
    },
    initial="reasoning",
    opened="reasoning",
    start="<think>",
    end="</think>",
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=("<tool_call>",),
    content_on={"</think>": CONTENT},
    disabled_by={"enable_thinking": False},
    trims=True,
)
