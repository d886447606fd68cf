"""Hop 4, out, for ``/v1/responses``: the response object and the events of its stream.

An event is the ``data`` of a server-sent event that is named by its ``type``. Events that close something
repeat its whole text, which derender does not keep: it is null there, and `response_stream` puts it in.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from render_tier.protocol.responses import LogprobOut


class Typed(msgspec.Struct, tag_field="type", gc=False):
    """Objects that carry their kind as ``type``."""


# --- output items and their parts ---


class OutputText(Typed, tag="output_text"):
    text: str | None
    annotations: list[Any] = []
    logprobs: list[LogprobOut] = []


class ReasoningText(Typed, tag="reasoning_text"):
    text: str | None


class MessageItem(Typed, tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(Typed, tag="reasoning"):
    id: str
    status: str
    content: list[ReasoningText]
    summary: list[Any] = []


class FunctionCallItem(Typed, tag="function_call"):
    """``namespace``: of a function of a namespace."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str | None
    namespace: str | UnsetType = UNSET


class CustomCallItem(Typed, tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str | None


Item = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


# --- the response ---


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, gc=False):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, gc=False):
    reason: str


class ResponseError(msgspec.Struct, gc=False):
    code: str
    message: str


class Response(msgspec.Struct, kw_only=True):
    """``output`` is null where `response_stream` puts it in."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: Raw
    max_output_tokens: Raw
    max_tool_calls: Raw
    metadata: Raw
    model: str
    output: list[Any] | None
    parallel_tool_calls: Raw
    previous_response_id: None = None
    prompt_cache_key: Raw
    reasoning: Raw
    safety_identifier: Raw
    service_tier: Raw
    store: bool = False
    temperature: Raw
    text: Raw
    tool_choice: Raw
    tools: Raw
    top_logprobs: Raw
    top_p: Raw
    truncation: Raw
    usage: ResponseUsage | None = None
    user: Raw
    presence_penalty: Raw
    frequency_penalty: Raw
    kv_transfer_params: dict[str, Raw] | UnsetType = UNSET
    """Of a whole answer whose engine reported some."""


# --- events ---


class Lifecycle(Typed):
    sequence_number: int
    response: Response


class Created(Lifecycle, tag="response.created"):
    pass


class InProgress(Lifecycle, tag="response.in_progress"):
    pass


class Completed(Lifecycle, tag="response.completed"):
    pass


class Incomplete(Lifecycle, tag="response.incomplete"):
    pass


class Failed(Lifecycle, tag="response.failed"):
    pass


class ItemAdded(Typed, tag="response.output_item.added"):
    sequence_number: int
    output_index: int
    item: Item


class ItemDone(Typed, tag="response.output_item.done"):
    sequence_number: int
    output_index: int
    item: Item


class OfItem(Typed):
    sequence_number: int
    output_index: int
    item_id: str


class PartAdded(OfItem, tag="response.content_part.added"):
    content_index: int
    part: OutputText | ReasoningText


class PartDone(OfItem, tag="response.content_part.done"):
    content_index: int
    part: OutputText | ReasoningText


class TextDelta(OfItem, tag="response.output_text.delta"):
    content_index: int
    delta: str
    logprobs: list[LogprobOut]


class TextDone(OfItem, tag="response.output_text.done"):
    content_index: int
    text: None = None
    logprobs: list[LogprobOut] = []


class ReasoningDelta(OfItem, tag="response.reasoning_text.delta"):
    content_index: int
    delta: str


class ReasoningDone(OfItem, tag="response.reasoning_text.done"):
    content_index: int
    text: None = None


class ArgumentsDelta(OfItem, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(OfItem, tag="response.function_call_arguments.done"):
    name: str
    arguments: None = None


class InputDelta(OfItem, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(OfItem, tag="response.custom_tool_call_input.done"):
    input: None = None


ResponseEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)
