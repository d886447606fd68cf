"""DeepSeek V3 and R1-0528 tool calls: as V3.1's, with a kind before the name and fenced arguments.

``<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`` and, on lines of their own, ```` ```json````, the
arguments and ```` ``` ````, then ``<｜tool▁call▁end｜>``.
"""

from __future__ import annotations

from render_tier.core.formats import deepseek_v31
from render_tier.core.header_call import HeaderCallFormat
from render_tier.core.table import State, ToolFormat

_SEPARATOR, _CALL_END = deepseek_v31.SEPARATOR, deepseek_v31.CALL_END

_BODY = HeaderCallFormat(
    separator=r"\n```json(?:\n|(?=\{))",
    header=rf".*{_SEPARATOR}\s*(?P<name>\S+)",
    ends=("\n```", _CALL_END),
    cut=r"[^\s\"'{]*\s*(?:`{1,3}[a-z]*\s*)?",
)

DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    states={
        **deepseek_v31.DEEPSEEK_V31.states,
        "call": State(
            body=_BODY,
            on=deepseek_v31.MARKERS,
            inside=(_SEPARATOR,),
            done="section",
            failed="damaged",
        ),
    },
    blanks="drop_alone",
)
