"""GLM-4.5 and later: reasoning in ``<think>``, calls as
``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE``.

A name may be followed by arguments at once, by a newline, or by the end of the call. White space around
names and keys is markup, inside values it is data. A call of a tool that the request does not have is not
made, as in vLLM. A ``<think>`` in the answer opens reasoning again.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.argument_writer import Key
from render_tier.core.formats.think_tags import THINK_TAGS
from render_tier.core.fragments import literal
from render_tier.core.table import CONTENT, Region, State, ToolFormat
from render_tier.core.xml_call import XmlCallFormat

_START, _END = "<tool_call>", "</tool_call>"


def _key(text: str) -> Key:
    return Key(text.strip())


GLM47 = ToolFormat(
    name="glm47",
    aliases=("glm45",),
    states={
        CONTENT: State(text=Region.CONTENT, on={_START: "call"}),
        "call": State(
            body=XmlCallFormat(
                name_ends={"<arg_key>": True},
                read_name=str.strip,
                parameter=literal("<arg_key>"),
                key_end="</arg_key>",
                read_key=_key,
                value_open="<arg_value>",
                close=literal("</arg_value>"),
                end=_END,
                exits=(_START,),
                checks_names=True,
            ),
            routes={_END: CONTENT, _START: "call"},
            failed=CONTENT,
            opens_call=True,
        ),
    },
    blanks="trim",
    none_drops=True,
)

GLM47_REASONING = replace(
    THINK_TAGS,
    name="glm47",
    aliases=("glm45",),
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=(_START,),
    content_on={"<think>": "reasoning", "</think>": CONTENT},
    disabled_by={"enable_thinking": False, "thinking": False},
    trims=True,
)
