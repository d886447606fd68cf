"""xLAM tool calls: an array of objects, bare or in one of three wrappings.

The bare array begins the answer. Otherwise it stands in a fence, after ``[TOOL_CALLS]`` or in
``<tool_call>``. Text around the calls is shown.
"""

from __future__ import annotations

from render_tier.core.choice import ChoiceFormat
from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_CALL = JsonCallFormat(name_key="name", arguments_keys=("arguments",))
_BODY = JsonCallsFormat(_CALL, empty=False)
_START = JsonCallsFormat(_CALL, empty=False, lead="[TOOL_CALLS]")

XLAM = ToolFormat(
    name="xlam",
    states={
        "answer": State(
            body=ChoiceFormat(starts="[", body=_START), done=CONTENT, failed=CONTENT, gives_back=False
        ),
        CONTENT: State(
            text=Region.CONTENT,
            on={
                "```json": "fenced",
                "```\n": "fenced",
                "```[": "fenced",
                "<tool_call>": "tagged",
                "[TOOL_CALLS]": "marked",
            },
        ),
        "fenced": State(body=_BODY, done="fence", failed=CONTENT),
        "fence": State(on={"```": CONTENT}),
        "tagged": State(body=_BODY, done="tag", failed=CONTENT),
        "tag": State(on={"</tool_call>": CONTENT}),
        "marked": State(body=_BODY, done=CONTENT, failed=CONTENT),
    },
    initial="answer",
    blanks="trim",
    bare_json=True,
)
