"""Gemma 4: reasoning in a channel, calls as ``<|tool_call>call:NAME{key:value}<tool_call|>`` (see
`gemma_call`).

A channel starts with its name, ``thought`` and a newline, which is not shown; a model that forgets the
marker of the channel and starts with its name is taken at its word. White space around content and calls is
not shown.
"""

from __future__ import annotations

from render_tier.core.gemma_call import QUOTE, GemmaCallFormat
from render_tier.core.lead import LeadFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat

_CALL, _CALL_END = "<|tool_call>", "<tool_call|>"
_CHANNEL, _CHANNEL_END = "<|channel>", "<channel|>"
_LEAD = LeadFormat("thought\n")
_CHANNELS = {_CHANNEL: "channel", _CHANNEL_END: CONTENT}

GEMMA4 = ToolFormat(
    name="gemma4",
    states={
        CONTENT: State(text=Region.CONTENT, on={_CALL: "call", _CALL_END: CONTENT}),
        "call": State(
            body=GemmaCallFormat(start=_CALL, end=_CALL_END),
            routes={_CALL_END: CONTENT, _CALL: "call"},
            failed=CONTENT,
            inside=(QUOTE,),
            opens_call=True,
        ),
    },
    blanks="trim",
    reasoning_ends=frozenset({_CALL}),
    none_drops=True,
)

GEMMA4_REASONING = ReasoningFormat(
    name="gemma4",
    states={
        "opening": State(body=_LEAD, done="reasoning", failed=CONTENT, on=_CHANNELS),
        "channel": State(body=_LEAD, done="reasoning", failed="reasoning", on=_CHANNELS, gives_back=False),
        "reasoning": State(text=Region.REASONING, on=_CHANNELS),
    },
    initial="opening",
    opened="reasoning",
    start=_CHANNEL,
    end=_CHANNEL_END,
    ended_by_tools=frozenset({"opening", "channel", "reasoning"}),
    ended_by=(_CALL,),
    content_on=_CHANNELS,
    trims=True,
)
