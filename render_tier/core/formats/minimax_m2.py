"""MiniMax M2: reasoning until ``</think>``, calls as ``<invoke name="NAME"><parameter name="KEY">VALUE``.

One ``<minimax:tool_call>`` wraps the calls of a turn; it may be missing. Quotes around names may be missing
or single. White space inside values is data. A call of a tool that the request does not have is not made,
as in vLLM. The prompt opens reasoning, whatever its instructions show of think tags; the model may repeat
the opening tag.
"""

from __future__ import annotations

import re
from dataclasses import replace

from render_tier.core.argument_writer import Key
from render_tier.core.formats.think_tags import THINK_TAGS
from render_tier.core.fragments import blanks, literal, sequence
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat
from render_tier.core.xml_call import XmlCallFormat

_START, _END, _INVOKE = "<minimax:tool_call>", "</minimax:tool_call>", "<invoke name="
_INSIDE = blanks(most=8)
_QUOTED = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s]+))")


def _name(text: str) -> str:
    return text.strip().strip("\"'").strip()


def _key(text: str) -> Key | None:
    match = _QUOTED.match(text)
    name = (match[1] or match[2] or match[3] or "").strip() if match is not None else ""
    return Key(name) if name else None


MINIMAX_M2 = ToolFormat(
    name="minimax_m2",
    states={
        CONTENT: State(text=Region.CONTENT, on={_START: "wrapper", _END: CONTENT, _INVOKE: "call"}),
        "wrapper": State(on={_END: CONTENT, _INVOKE: "call"}),
        "call": State(
            body=XmlCallFormat(
                name_ends={">": False},
                read_name=_name,
                parameter=sequence(
                    literal("<"),
                    _INSIDE,
                    literal("parameter"),
                    blanks(1, 8),
                    literal("name"),
                    _INSIDE,
                    literal("="),
                ),
                key_end=">",
                read_key=_key,
                close=sequence(
                    literal("<"), _INSIDE, literal("/"), _INSIDE, literal("parameter"), _INSIDE, literal(">")
                ),
                next_closes=True,
                end="</invoke>",
                exits=(_END, _INVOKE),
                checks_names=True,
            ),
            routes={"</invoke>": "wrapper", _END: CONTENT, _INVOKE: "call"},
            failed=CONTENT,
            opens_call=True,
        ),
    },
    blanks="trim",
    reasoning_ends=frozenset({_START}),
    none_drops=True,
)

MINIMAX_M2_APPEND_THINK = ReasoningFormat(
    name="minimax_m2_append_think",
    states={},
    initial=CONTENT,
    opened=CONTENT,
    start="<think>",
    end="</think>",
    preface="<think>",
)
"""Reasoning stays in the content, with the tag that the prompt has written put before it."""

MINIMAX_M2_REASONING = replace(
    THINK_TAGS,
    name="minimax_m2",
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=(_START,),
    content_on={"</think>": CONTENT},
    trims=True,
)
