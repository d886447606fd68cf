"""DeepSeek V3.1 and V3.2 reasoning: R1's block, in answers whose prompt or request asks for thinking.

When nothing asks for it the whole output is the answer, ``<think>`` included.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.think_tags import THINK_TAGS
from render_tier.core.table import CONTENT

DEEPSEEK_V3_REASONING = replace(
    THINK_TAGS,
    name="deepseek_v3",
    initial=CONTENT,
    disabled_by={"enable_thinking": False, "thinking": False},
    enabled_by={"enable_thinking": True, "thinking": True},
)
