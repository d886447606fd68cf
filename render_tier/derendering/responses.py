"""Output tokens to a Responses answer: the events of one step of a stream, or one response.

A whole answer is its stream's events put together, so the two never differ.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from render_tier.derendering.context import Context
from render_tier.derendering.item_writer import IN_PROGRESS, ItemWriter, ResponseProgress
from render_tier.derendering.output import Output, Step
from render_tier.derendering.response_facts import ResponseFacts
from render_tier.derendering.state import Stream
from render_tier.protocol.derender import TokensChunk, TokensResponse
from render_tier.protocol.generate import GenerateUsage
from render_tier.protocol.response_answers import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseUsage,
)
from render_tier.protocol.response_stream import ResponseStream

STATUSES: Final = {
    "stop": "completed",
    "tool_calls": "completed",
    "repetition": "completed",
    "length": "incomplete",
    "abort": "cancelled",
    "error": "failed",
}
"""Why the engine ended -> how the response did."""


def chunk_events(
    stream: Stream, step: Step, chunk: TokensChunk, prompt_tokens: int, model: str
) -> list[ResponseEvent]:
    """The events of one step of a stream, whose progress is advanced."""
    output = stream.output
    context = output.context
    progress = stream.progress_as(ResponseProgress)
    writer = ItemWriter(progress, context, chunk.request_id)
    made = partial(response_of, context, request_id=chunk.request_id, created=stream.created, model=model)
    if not progress.events:
        writer.begin(made(status=IN_PROGRESS))
    for piece in step.pieces:
        writer.write(*piece)
    if output.finished:
        used = response_usage(prompt_tokens, stream.tokens, chunk.usage, output.reasoning_tokens)
        status = status_of(step.finish_reason)
        writer.end(made(status=status, usage=used, finished=True))
    stream.progress = msgspec.msgpack.encode(progress)
    return writer.events


def whole_response(
    output: Output, step: Step, response: TokensResponse, created: int, prompt_tokens: int, model: str
) -> Response:
    """``step``: all of the output."""
    context = output.context
    made = response_of(
        context,
        request_id=response.request_id,
        created=created,
        model=model,
        status=status_of(step.finish_reason),
        usage=response_usage(prompt_tokens, step.used, response.usage, output.reasoning_tokens),
    )
    writer = ItemWriter(ResponseProgress(), context, response.request_id)
    for piece in step.pieces:
        writer.write(*piece)
    writer.end(made)
    stream = ResponseStream()
    for event in writer.events[:-1]:
        stream.add(msgspec.json.encode(event))
    made.output = stream.output
    if response.kv_transfer_params is not None:
        made.kv_transfer_params = response.kv_transfer_params
    return made


def response_of(
    context: Context,
    *,
    request_id: str,
    created: int,
    model: str,
    status: str,
    usage: ResponseUsage | None = None,
    finished: bool = False,
) -> Response:
    """``finished``: ``output`` is still to be put in. Before, it is empty."""
    assert isinstance(context.answer, ResponseFacts)
    return Response(
        id=request_id,
        created_at=created,
        status=status,
        error=ResponseError("server_error", "the engine failed") if status == "failed" else None,
        incomplete_details=IncompleteDetails("max_output_tokens") if status == "incomplete" else None,
        model=model,
        output=None if finished else [],
        usage=usage,
        **context.answer.repeated,
    )


def status_of(finish_reason: str | None) -> str:
    return STATUSES.get(finish_reason or "stop", "failed")


def response_usage(
    input_tokens: int, output_tokens: int, engine: GenerateUsage | None, reasoning_tokens: int
) -> ResponseUsage:
    """``engine``: for the cached input tokens; 0 where nobody reported them."""
    cached = engine.cached_tokens if engine is not None else None
    return ResponseUsage(
        input_tokens,
        InputDetails(cached or 0),
        output_tokens,
        OutputDetails(reasoning_tokens),
        input_tokens + output_tokens,
    )
