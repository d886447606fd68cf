"""Mistral reasoning and tool calls: ``[THINK]...[/THINK]``, ``[TOOL_CALLS]name[ARGS]{...}``.

Tokenizers of version 11 and later write each call with its own marker, the name, optionally ``[CALL_ID]``
and an ID, and the arguments after ``[ARGS]`` or at once; older ones write one marker and an array of
objects. Which of the two it is shows in the first character. Version 11 spells the reasoning markers
``<think>`` and ``</think>``. Text after a call is not shown.
"""

from __future__ import annotations

from render_tier.core.choice import ChoiceFormat
from render_tier.core.header_call import HeaderCallFormat
from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, ReasoningFormat, Region, State, ToolFormat

_OPENERS = {"[THINK]": "reasoning", "<think>": "reasoning"}
_CLOSERS = {"[/THINK]": CONTENT, "</think>": CONTENT}

MISTRAL_REASONING = ReasoningFormat(
    name="mistral",
    states={"reasoning": State(text=Region.REASONING, on={**_OPENERS, **_CLOSERS})},
    initial=CONTENT,
    opened="reasoning",
    start="[THINK]",
    end="[/THINK]",
    ended_by_tools=frozenset({"reasoning"}),
    ended_by=("[TOOL_CALLS]",),
    content_on={**_OPENERS, **_CLOSERS},
    trims=True,
)

_SEPARATORS = ("[ARGS]", "[CALL_ID]")
_NAMED = HeaderCallFormat(
    separator=r"\[ARGS\]|(?=\{)",
    header=r"(?P<name>[^\s\[](?:[^\[]*[^\s\[])?)\s*(?:\[CALL_ID\]\s*(?P<id>\S+))?",
)
_ARRAY = JsonCallsFormat(
    JsonCallFormat(name_key="name", arguments_keys=("arguments",), optional=True), bare=True
)

MISTRAL = ToolFormat(
    name="mistral",
    states={
        CONTENT: State(text=Region.CONTENT, on={"[TOOL_CALLS]": "call"}, inside=_SEPARATORS),
        "call": State(
            body=ChoiceFormat(starts="[{", body=_ARRAY, otherwise=_NAMED),
            on={"[TOOL_CALLS]": "call"},
            inside=_SEPARATORS,
            done="after",
            failed=CONTENT,
        ),
        "after": State(on={"[TOOL_CALLS]": "call"}),
    },
    blanks="trim",
    none_drops=True,
    bare_list=True,
    call_id_length=9,
)
