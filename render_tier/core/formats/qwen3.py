"""Qwen3 reasoning: ``<think>`` ... ``</think>`` before the answer.

The model opens the block itself, or the prompt does; an output that never opens it is reasoning too until
``</think>``, unless the prompt closed reasoning. A tool call ends reasoning as well.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.think_tags import THINK_TAGS
from render_tier.core.table import CONTENT

QWEN3 = replace(
    THINK_TAGS,
    name="qwen3",
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=("<tool_call>",),
    content_on={"</think>": CONTENT},  # models write it twice; the second one is not shown either
    disabled_by={"enable_thinking": False},
)
