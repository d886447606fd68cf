"""Events to chat messages and deltas, in the shapes that vLLM's endpoints give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from render_tier.core.events import CallArguments, CallStart, Event, Text
from render_tier.core.table import Region
from render_tier.derendering.context import Context
from render_tier.protocol.responses import (
    Delta,
    FunctionCall,
    FunctionDelta,
    Message,
    ToolCall,
    ToolCallDelta,
)

_NUMBER: Final = re.compile(r":\d+\Z")


def call_id(
    request_id: str,
    context: Context,
    choice: int,
    call: int,
    written: str = "",
    *,
    prefix: str = "chatcmpl-tool-",
) -> str:
    """The ID of a call: the one that the model wrote, for families that have them, with its number put right
    where that counts the calls of the conversation (else two could have the same ID); else a derived one, of
    a length without ``prefix`` for families that read no other."""
    if written and context.calls_before is not None:
        name = _NUMBER.sub("", written).removeprefix("functions.")
        return f"functions.{name}:{context.calls_before + call}"
    if written:
        return written
    derived = context.derived_id(request_id, f"/{choice}/{call}", size=8)
    if context.call_id_length is not None:
        return derived[: context.call_id_length]
    return prefix + derived


def shown_call(context: Context, index: int) -> bool:
    return not context.drops_calls and (index == 0 or not context.one_call)


def message(events: Iterable[Event], context: Context, request_id: str, choice: int) -> Message:
    """The whole message. Content is null when there is none, but empty where tool_choice forces a call (and
    without a parser), as in the coupled server."""
    texts: dict[Region, list[str]] = {Region.REASONING: [], Region.CONTENT: []}
    started: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    for event in events:
        match event:
            case Text(region, text):
                texts[region].append(text)
            case CallStart(index) if shown_call(context, index):
                started[index], arguments[index] = event, []
            case CallArguments(index, text) if index in arguments:
                arguments[index].append(text)
    content: str | None = "".join(texts[Region.CONTENT])
    if not content and context.parsed and not context.forced:
        content = None
    reasoning = "" if context.hides_reasoning else "".join(texts[Region.REASONING])
    calls = [
        ToolCall(
            call_id(request_id, context, choice, index, start.written_id),
            "function",
            FunctionCall(start.name, "".join(arguments[index])),
        )
        for index, start in started.items()
    ]
    return Message(content=content, reasoning=reasoning or None, tool_calls=calls or UNSET)


def delta(
    events: Iterable[Event],
    context: Context,
    request_id: str,
    choice: int,
    *,
    role: bool,
    named_before: int = 0,
) -> Delta:
    """One chunk's delta. ``named_before``: calls whose name the client has from another server already."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCallDelta] = []
    for event in events:
        if type(event) is Text:
            if event.region is Region.CONTENT:
                content.append(event.text)
            elif not context.hides_reasoning:
                reasoning.append(event.text)
        elif type(event) is CallArguments:
            if shown_call(context, event.index):
                calls.append(ToolCallDelta(None, UNSET, event.index, FunctionDelta(None, event.text)))
        elif type(event) is CallStart and event.index >= named_before and shown_call(context, event.index):
            identifier = call_id(request_id, context, choice, event.index, event.written_id)
            calls.append(ToolCallDelta(identifier, "function", event.index, FunctionDelta(event.name, None)))
    return Delta(
        "assistant" if role else None,
        "".join(content) or None,
        "".join(reasoning) or None,
        calls or UNSET,
    )
