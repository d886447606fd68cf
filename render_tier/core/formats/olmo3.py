"""OLMo 3 reasoning and tool calls.

Reasoning is ``<think>`` ... ``</think>`` in ordinary tokens. Calls are Python calls, one a line, in
``<function_calls>``, or bare where they are the whole answer. Text around them is shown.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.think_tags import THINK_TAGS
from render_tier.core.python_calls import PythonCallsFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

OLMO3_REASONING = replace(
    THINK_TAGS,
    name="olmo3",
    keeps_special_tokens=False,
)

_CALLS = PythonCallsFormat(listed=False)

OLMO3 = ToolFormat(
    name="olmo3",
    states={
        "answer": State(body=_CALLS, done=CONTENT, failed=CONTENT, gives_back=False),
        CONTENT: State(text=Region.CONTENT, on={"<function_calls>": "calls"}),
        "calls": State(body=_CALLS, on={"</function_calls>": CONTENT}, done="closing", failed=CONTENT),
        "closing": State(on={"</function_calls>": CONTENT}),
    },
    initial="answer",
    blanks="trim",
    bare_json=True,
    keeps_special_tokens=False,
)
