"""Seed-OSS: `qwen3_coder`'s calls and `qwen3`'s reasoning, with ``seed:`` tags around them."""

from __future__ import annotations

from render_tier.core.formats.qwen3_coder import function_calls
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State

SEED_OSS = function_calls("seed_oss", "<seed:tool_call>", "</seed:tool_call>", bare_json=True)

SEED_OSS_REASONING = ReasoningFormat(
    name="seed_oss",
    states={
        "reasoning": State(text=Region.REASONING, on={"<seed:think>": "reasoning", "</seed:think>": CONTENT})
    },
    initial="reasoning",
    opened="reasoning",
    start="<seed:think>",
    end="</seed:think>",
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=("<seed:tool_call>",),
    content_on={"</seed:think>": CONTENT},
    disabled_by={"enable_thinking": False},
)
