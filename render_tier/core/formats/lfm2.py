"""LFM2 tool calls: a Python list between ``<|tool_call_start|>`` and ``<|tool_call_end|>``.

Text around it is shown. The model sometimes writes the call once more after its end; a second end marker is
left out.
"""

from __future__ import annotations

from render_tier.core.python_calls import PythonCallsFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_MARKERS = {"<|tool_call_start|>": "calls", "<|tool_call_end|>": CONTENT}

LFM2 = ToolFormat(
    name="lfm2",
    states={
        CONTENT: State(text=Region.CONTENT, on=_MARKERS),
        "calls": State(body=PythonCallsFormat(), on=_MARKERS, done="closing", failed=CONTENT),
        "closing": State(on=_MARKERS),
    },
    blanks="trim",
    bare_json=True,
)
