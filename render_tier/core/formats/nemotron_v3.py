"""Nemotron 3: `qwen3`'s reasoning without the white space at its end; the calls are `qwen3_coder`'s.

With ``force_nonempty_content`` an answer of nothing but reasoning repeats it as content.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.qwen3 import QWEN3

NEMOTRON_V3 = replace(QWEN3, name="nemotron_v3", trims=True, repeated_by={"force_nonempty_content": True})
