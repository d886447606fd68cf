"""Step-3.5 and Step-3.7: `qwen3_coder`'s calls; reasoning that every prompt opens, closed by
``\\n</think>\\n``.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.qwen3 import QWEN3
from render_tier.core.formats.qwen3_coder import function_calls

STEP3P5 = function_calls("step3p5", "<tool_call>", "</tool_call>")

STEP3P5_REASONING = replace(QWEN3, name="step3p5", disabled_by={}, trims=True)
