"""DeepSeek R1 reasoning: ``<think>`` ... ``</think>`` before the answer, opened by the prompt or the model.

Also R1's distillations and QwQ. An output that never opens the block is reasoning until ``</think>``, unless
the prompt closed reasoning. Tool markup inside reasoning is reasoning.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.think_tags import THINK_TAGS

DEEPSEEK_R1 = replace(
    THINK_TAGS, name="deepseek_r1", disabled_by={"enable_thinking": False, "thinking": False}
)
