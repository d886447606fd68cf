"""Kimi K2 reasoning and tool calls.

Calls stand in a section, each ``<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}``
``<|tool_call_end|>``. The header is the call's ID, which counts over the whole conversation; it is handed on
with the call. Arguments may follow it at once, or be missing. Text after the first section is not shown.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.formats.think_tags import THINK_TAGS
from render_tier.core.header_call import HeaderCallFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_MARKERS = {_CALL: "call", _CALL_END: "section", _SECTION_END: "section", _SECTION: "section"}

KIMI_K2_REASONING = replace(
    THINK_TAGS,
    name="kimi_k2",
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=(_SECTION,),
    content_on={"</think>": CONTENT},
    disabled_by={"thinking": False, "enable_thinking": False},
    trims=True,
)

KIMI_K2 = ToolFormat(
    name="kimi_k2",
    numbers_calls=True,
    states={
        CONTENT: State(text=Region.CONTENT, on={_SECTION: "section"}),
        "section": State(on=_MARKERS),
        "damaged": State(
            text=Region.CONTENT,
            on={**dict.fromkeys(_MARKERS, "damaged"), _CALL: "call"},
            inside=(_ARGUMENTS,),
        ),
        "call": State(
            body=HeaderCallFormat(
                separator=r"<\|tool_call_argument_begin\|>|(?=[{\[]|<\|tool_call_end\|>)",
                header=r"(?P<id>(?:functions\.)?+(?P<name>[^:<|\s]+)(?::\d+)?).*",
                ends=(_CALL_END, _SECTION_END),
                bare=r"[^:]+:\d+",
            ),
            on=_MARKERS,
            inside=(_ARGUMENTS,),
            done="section",
            failed="damaged",
        ),
    },
    blanks="drop_alone",
    none_drops=True,
)
