"""MiMo: `qwen3_coder`'s calls, with values verbatim between their tags, and `qwen3`'s reasoning."""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.qwen3 import QWEN3
from render_tier.core.formats.qwen3_coder import function_calls

MIMO = function_calls("mimo", "<tool_call>", "</tool_call>", trims_newline=False)

MIMO_REASONING = replace(QWEN3, name="mimo")
