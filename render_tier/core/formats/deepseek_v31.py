"""DeepSeek V3.1 tool calls: ``<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`` in a section.

Text after the section is not shown, nor is what stands between calls. A call without its separator is text.
"""

from __future__ import annotations

from render_tier.core.header_call import HeaderCallFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKERS = {CALL: "call", CALL_END: "section", SECTION_END: "section"}

DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    states={
        CONTENT: State(text=Region.CONTENT, on={SECTION: "section"}),
        "section": State(on=MARKERS),
        "damaged": State(
            text=Region.CONTENT, on={**dict.fromkeys(MARKERS, "damaged"), CALL: "call"}, inside=(SEPARATOR,)
        ),
        "call": State(
            body=HeaderCallFormat(separator=SEPARATOR, ends=(CALL_END,)),
            on=MARKERS,
            inside=(SEPARATOR,),
            done="section",
            failed="damaged",
        ),
    },
    blanks="drop_alone",
)
