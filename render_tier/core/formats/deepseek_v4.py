"""DeepSeek V4: reasoning in ``<think>``, calls in DSML (see `deepseek_v32`) with another wrapper.

The prompt opens or closes reasoning. A later ``<think>`` in the answer opens it again; a block of calls
ends it.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.deepseek_v32 import dsml_calls
from render_tier.core.formats.think_tags import THINK_TAGS
from render_tier.core.table import CONTENT

DEEPSEEK_V4 = dsml_calls("deepseek_v4", "tool_calls", variants=("toolcalls", "tool"))

DEEPSEEK_V4_REASONING = replace(
    THINK_TAGS,
    name="deepseek_v4",
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=("<｜DSML｜tool_calls>",),
    content_on={"<think>": "reasoning", "</think>": CONTENT},
    disabled_by={"enable_thinking": False, "thinking": False, "reasoning_effort": "none"},
    trims=True,
)
