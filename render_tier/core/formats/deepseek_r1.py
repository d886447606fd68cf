"""DeepSeek R1 reasoning: ``<think>`` ... ``</think>`` before the answer, opened by the prompt or the model.

Also R1's distillations and QwQ. An output that never opens the block is reasoning until ``</think>``, unless
the prompt closed reasoning. Tool markup inside reasoning is reasoning.
"""

from __future__ import annotations

from render_tier.core.table import CONTENT, ReasoningFormat, Region, State

STATES = {"reasoning": State(text=Region.REASONING, on={"<think>": "reasoning", "</think>": CONTENT})}

DEEPSEEK_R1 = ReasoningFormat(
    name="deepseek_r1",
    states=STATES,
    initial="reasoning",
    opened="reasoning",
    start="<think>",
    end="</think>",
    disabled_by={"enable_thinking": False, "thinking": False},
)
