"""No tool calls: all text is content."""

from __future__ import annotations

from render_tier.core.table import CONTENT, Region, State, ToolFormat

PLAIN = ToolFormat(name="plain", states={CONTENT: State(text=Region.CONTENT)}, keeps_special_tokens=False)
