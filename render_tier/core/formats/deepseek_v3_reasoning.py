"""DeepSeek V3.1 and V3.2 reasoning: R1's block, in answers whose prompt or request asks for thinking.

When nothing asks for it the whole output is the answer, ``<think>`` included.
"""

from __future__ import annotations

from render_tier.core.formats.deepseek_r1 import STATES
from render_tier.core.table import CONTENT, ReasoningFormat

DEEPSEEK_V3_REASONING = ReasoningFormat(
    name="deepseek_v3",
    states=STATES,
    initial=CONTENT,
    opened="reasoning",
    start="<think>",
    end="</think>",
    disabled_by={"enable_thinking": False, "thinking": False},
    enabled_by={"enable_thinking": True, "thinking": True},
)
