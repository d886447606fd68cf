"""Reasoning between ``<think>`` and ``</think>``, as most families write it: each table says how it differs.

An output that opens no block is reasoning until ``</think>``, unless the prompt closed it.
"""

from __future__ import annotations

from typing import Final

from render_tier.core.table import CONTENT, ReasoningFormat, Region, State

THINK_TAGS: Final = ReasoningFormat(
    name="think_tags",
    states={"reasoning": State(text=Region.REASONING, on={"<think>": "reasoning", "</think>": CONTENT})},
    initial="reasoning",
    opened="reasoning",
    start="<think>",
    end="</think>",
)
