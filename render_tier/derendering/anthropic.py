"""Parser events to Anthropic's content blocks, in a stream or as one message.

Blocks come in the order in which the model wrote them: thinking, text and calls, each with an index of its
own, one after the other. A whole message is its stream's events put together, so the two never differ.

Ids and signatures are derived from the request and the place of their block, so a repeated call gives the
same ones on any replica. A signature proves nothing: clients must have one to give back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec
import pydantic_core
from msgspec import UNSET, Raw

from render_tier.core.events import CallArguments, CallEnd, CallStart, Event, Text
from render_tier.core.table import Region
from render_tier.derendering.chat import call_id, shown_call
from render_tier.derendering.context import Context
from render_tier.derendering.output import Output, Step
from render_tier.derendering.state import Stream
from render_tier.protocol.anthropic_answers import (
    EMPTY_INPUT,
    Block,
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageEvent,
    MessageOut,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputDetails,
    SignatureDelta,
    Stopping,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from render_tier.protocol.derender import Count, TokensChunk, TokensResponse
from render_tier.protocol.generate import GenerateUsage

CALL_PREFIX: Final = "toolu_"


class Kind(IntEnum):
    NONE = 0
    TEXT = 1
    THINKING = 2
    CALL = 3


class Progress(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a stream of blocks stands: all of it, for a state. ``blocks`` have begun; the last of them is
    open if ``open`` is not `Kind.NONE`. ``complete``: the last call has ended with whole arguments."""

    blocks: Count = 0
    open: Kind = Kind.NONE
    calls: Count = 0
    complete: bool = False


class BlockWriter:
    """The events of one piece of output, appended to ``events``; ``progress`` is advanced."""

    def __init__(self, progress: Progress, context: Context, request_id: str) -> None:
        self.events: list[BlockEvent] = []
        self._progress = progress
        self._context = context
        self._request_id = request_id

    def write(self, events: Iterable[Event]) -> None:
        for event in events:
            if type(event) is Text:
                self._text(event)
            elif type(event) is CallArguments:
                if shown_call(self._context, event.index):
                    self._delta(InputDelta(event.text))
            elif type(event) is CallStart:
                if shown_call(self._context, event.index):
                    self._call(event)
            elif type(event) is CallEnd and shown_call(self._context, event.index):
                self._progress.complete = event.complete
                self.close()

    def finish(self) -> None:
        """Close what is open. A message without anything has one empty text: clients look at the first
        block."""
        self.close()
        if not self._progress.blocks:
            self._begin(Kind.TEXT, TextBlock(""))
            self.close()

    def close(self) -> None:
        progress = self._progress
        if progress.open is Kind.THINKING:
            self._delta(SignatureDelta(self._signature()))
        if progress.open is not Kind.NONE:
            self.events.append(BlockStop(progress.blocks - 1))
            progress.open = Kind.NONE

    def _text(self, event: Text) -> None:
        if event.region is Region.CONTENT:
            if self._progress.open is not Kind.TEXT:
                self._begin(Kind.TEXT, TextBlock(""))
            self._delta(TextDelta(event.text))
        else:
            if self._progress.open is not Kind.THINKING:
                self._begin(Kind.THINKING, ThinkingBlock("", ""))
            self._delta(ThinkingDelta(event.text))

    def _call(self, event: CallStart) -> None:
        identifier = call_id(
            self._request_id, self._context, 0, event.index, event.written_id, prefix=CALL_PREFIX
        )
        self._begin(Kind.CALL, ToolUseBlock(identifier, event.name, EMPTY_INPUT))
        self._progress.calls += 1
        self._progress.complete = False

    def _begin(self, kind: Kind, block: Block) -> None:
        self.close()
        progress = self._progress
        self.events.append(BlockStart(progress.blocks, block))
        progress.blocks += 1
        progress.open = kind

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta) -> None:
        """Joined with the one before, where both are text of the same block."""
        index = self._progress.blocks - 1
        last = self.events[-1] if self.events else None
        if type(last) is BlockDelta and last.index == index:
            before = last.delta
            if type(before) is TextDelta and type(delta) is TextDelta:
                before.text += delta.text
                return
            if type(before) is ThinkingDelta and type(delta) is ThinkingDelta:
                before.thinking += delta.thinking
                return
            if type(before) is InputDelta and type(delta) is InputDelta:
                before.partial_json += delta.partial_json
                return
        self.events.append(BlockDelta(index, delta))

    def _signature(self) -> str:
        return self._context.derived_id(self._request_id, f"/thinking/{self._progress.blocks - 1}")


def message_start(request_id: str, model: str, usage: MessageUsage) -> MessageStart:
    """``usage``: as far as it is known. The counts of a stream's last event are those that stand."""
    message = MessageOut(
        id=request_id, model=model, content=[], stop_reason=None, stop_sequence=None, usage=usage
    )
    return MessageStart(message)


def put_together(events: Iterable[BlockEvent]) -> list[Block]:
    """The blocks of a finished stream."""
    blocks: list[Block] = []
    arguments = ""
    for event in events:
        if isinstance(event, BlockStart):
            blocks.append(event.content_block)
            arguments = ""
            continue
        block = blocks[-1]
        if isinstance(event, BlockStop):
            if isinstance(block, ToolUseBlock):
                block.input = _input(arguments)
        elif isinstance(event.delta, InputDelta):
            arguments += event.delta.partial_json
        elif isinstance(block, TextBlock) and isinstance(event.delta, TextDelta):
            block.text += event.delta.text
        elif isinstance(block, ThinkingBlock) and isinstance(event.delta, ThinkingDelta):
            block.thinking += event.delta.thinking
        elif isinstance(block, ThinkingBlock) and isinstance(event.delta, SignatureDelta):
            block.signature = event.delta.signature
    return blocks


def _input(arguments: str) -> Raw:
    """The arguments as JSON: as they are, or, of a call that was cut, what is whole of them, which is what
    Anthropic's own client reads from a stream."""
    if not arguments.strip():
        return Raw(b"{}")
    try:
        msgspec.json.decode(arguments)
        return Raw(arguments.encode())
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    try:
        partial = pydantic_core.from_json(arguments.encode(errors="replace"), allow_partial=True)
        return Raw(msgspec.json.encode(partial))
    except (ValueError, RecursionError):
        return Raw(b"{}")


def stopping(finish_reason: str | None, stop_reason: int | str | None, progress: Progress) -> Stopping:
    """Anthropic's stop reason. A call is to be carried out unless a stop sequence or the limit cut it; ends
    that Anthropic's API does not know ("abort", "repetition") have none."""
    if finish_reason == "length":
        return Stopping("max_tokens", None)
    if finish_reason not in ("stop", "tool_calls"):
        return Stopping(None, None)
    if progress.calls and progress.complete:
        return Stopping("tool_use", None)
    if isinstance(stop_reason, str):
        return Stopping("stop_sequence", stop_reason)
    return Stopping("tool_use" if progress.calls else "end_turn", None)


def message_usage(
    prompt_tokens: int, output_tokens: int, engine: GenerateUsage | None, thinking_tokens: int | None
) -> MessageUsage:
    """``engine``: for the cached prompt tokens. ``thinking_tokens`` None: no reasoning parser counts them."""
    cached = engine.cached_tokens if engine is not None else None
    return MessageUsage(
        input_tokens=max(prompt_tokens - (cached or 0), 0),
        cache_read_input_tokens=UNSET if cached is None else cached,
        output_tokens=output_tokens,
        output_tokens_details=UNSET if thinking_tokens is None else OutputDetails(thinking_tokens),
    )


def chunk_events(
    stream: Stream, step: Step, chunk: TokensChunk, prompt_tokens: int, model: str
) -> list[MessageEvent]:
    """The events of one step of a stream, whose progress is advanced."""
    output = stream.output
    used = message_usage(prompt_tokens, stream.tokens, chunk.usage, output.counted_reasoning)
    events: list[MessageEvent] = []
    if not stream.role_sent:
        stream.role_sent = True
        events.append(message_start(chunk.request_id, model, used))
    progress = stream.progress_as(Progress)
    writer = BlockWriter(progress, output.context, chunk.request_id)
    writer.write(step.events)
    if output.finished:
        writer.finish()
    events += writer.events
    if output.finished:
        events += (
            MessageDelta(stopping(step.finish_reason, step.stop_reason, progress), used),
            MessageStop(),
        )
    stream.progress = msgspec.msgpack.encode(progress)
    return events


def whole_message(
    output: Output, step: Step, response: TokensResponse, prompt_tokens: int, model: str
) -> MessageOut:
    """``step``: all of the output."""
    progress = Progress()
    writer = BlockWriter(progress, output.context, response.request_id)
    writer.write(step.events)
    writer.finish()
    end = stopping(step.finish_reason, step.stop_reason, progress)
    return MessageOut(
        id=response.request_id,
        model=model,
        content=put_together(writer.events),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=message_usage(prompt_tokens, step.used, response.usage, output.counted_reasoning),
    )
