"""Harmony (gpt-oss): the whole output is messages, and what each of them is stands in its head.

Analysis is reasoning, final and commentary are the answer, a message to a function is a call. Several
messages of one kind are joined by newlines. Messages of other authors, to the model's own tools, to
functions where calls are not wanted, or on unknown channels are not shown. Text outside messages is part of
the answer, so that a stream that lost its way goes on as text. The reasoning and the tool format are one
grammar; either works alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from render_tier.core.harmony_message import HarmonyMessageFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat

_NOTHING = "(?!)"
_ENDS = {"<|end|>": CONTENT, "<|call|>": CONTENT, "<|return|>": CONTENT}
_HEADS = {"<|start|>": "head", "<|channel|>": "head"}
_MARKERS = {**_ENDS, **_HEADS}


def _states(analysis: Region, *, calls: bool) -> Mapping[str, State]:
    head = State(
        body=HarmonyMessageFormat(separator=r"<\|message\|>", cut=_NOTHING, calls=calls),
        on={**_ENDS, "<|start|>": "head"},
        inside=("<|channel|>", "<|constrain|>", "<|message|>"),
        failed=CONTENT,
        routes={"analysis": "analysis", "message": "message", "ignored": "ignored", "call": CONTENT},
    )
    return {
        "head": head,
        "analysis": State(text=analysis, separator="\n", on=_MARKERS),
        "message": State(text=Region.CONTENT, separator="\n", on=_MARKERS),
        "ignored": State(on=_MARKERS),
    }


_CONTENT = {CONTENT: State(text=Region.CONTENT, on=_MARKERS)}

OPENAI_GPTOSS = ReasoningFormat(
    name="openai_gptoss",
    states=_states(Region.REASONING, calls=False),
    initial="head",
    opened="head",
    start="<|channel|>analysis<|message|>",
    end="<|end|>",
    content_on=_MARKERS,
    joined={
        "openai": {**_CONTENT, **_states(Region.REASONING, calls=True)},
        "openai, bypassed": {**_CONTENT, **_states(Region.REASONING, calls=False)},
    },
)

OPENAI = ToolFormat(
    name="openai",
    states={**_CONTENT, **_states(Region.MARKUP, calls=True)},
    answer_states={**_CONTENT, **_states(Region.MARKUP, calls=False)},
    initial="head",
    blanks="drop_alone",
    none_drops=True,
)
