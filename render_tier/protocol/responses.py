"""Hop 4, out: OpenAI response objects with vLLM's additions. The order of keys is vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from render_tier.protocol.generate import PromptTokensDetails, RequestMetrics


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: dict[str, int] | None = None


class TopLogprobOut(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None


class LogprobOut(msgspec.Struct, gc=False):
    """``bytes`` are those of ``token``; null for an ID that the tokenizer does not have."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprobOut]


class LogprobsOut(msgspec.Struct, gc=False):
    content: list[LogprobOut] | None


class CompletionLogprobs(msgspec.Struct, gc=False):
    """Parallel lists, one element per token. ``text_offset``: characters of the tokens before."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


# --- chat, whole ---


class FunctionCall(msgspec.Struct, gc=False):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, gc=False):
    id: str
    type: str
    function: FunctionCall


class Message(msgspec.Struct, kw_only=True, gc=False):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | None


class ChatChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    message: Message
    logprobs: LogprobsOut | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    routed_experts: None = None


class ChatCompletion(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: Usage
    prompt_logprobs: list[Raw] | None = None
    prompt_token_ids: Raw | None = None
    prompt_text: None = None
    kv_transfer_params: dict[str, Raw] | None = None
    ec_transfer_params: None = None
    metrics: RequestMetrics | None = None


# --- chat, streaming ---


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | None
    arguments: str | None


class ToolCallDelta(msgspec.Struct, gc=False):
    """The first delta of a call has its id, type and name; the others its index and more argument text, and
    no type: the `openai` client's accumulated call takes the last one it sees, null too."""

    id: str | None
    type: str | UnsetType
    index: int
    function: FunctionDelta


class Delta(msgspec.Struct, gc=False):
    role: str | None
    content: str | None
    reasoning: str | None
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, gc=False):
    index: int
    delta: Delta
    logprobs: LogprobsOut | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None


class ChatChunk(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    system_fingerprint: None = None
    prompt_token_ids: Raw | None = None
    prompt_text: None = None
    metrics: RequestMetrics | None = None


# --- completions ---


class CompletionChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_logprobs: list[Raw] | None = None
    prompt_token_ids: Raw | None = None
    routed_experts: None = None


class Completion(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: None = None
    system_fingerprint: None = None
    usage: Usage
    kv_transfer_params: dict[str, Raw] | None = None
    ec_transfer_params: None = None
    metrics: RequestMetrics | None = None


class CompletionChunkChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_token_ids: Raw | None = None
    token_ids: list[int] | None


class CompletionChunk(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    system_fingerprint: None = None
    metrics: RequestMetrics | None = None


# --- the streaming envelope ---


class DerenderNotes(msgspec.Struct, gc=False):
    """Ours: counts of this choice so far, the context's digest, and whether the chunk shows the client
    nothing."""

    context: str
    completion_tokens: int
    reasoning_tokens: int
    empty: bool
    finished: bool | UnsetType = UNSET
    """Where the answer is a list of events: the choice is over. A chunk's finish reason says it otherwise."""


class StreamStateOut(msgspec.Struct, gc=False):
    v: int
    s: str


class ChunkAnswer(msgspec.Struct, gc=False):
    chunk: ChatChunk | CompletionChunk
    stream_state: StreamStateOut | Raw
    derender: DerenderNotes


class EventsAnswer(msgspec.Struct, gc=False):
    """For APIs that stream events of many types."""

    events: list[Any]
    stream_state: StreamStateOut | Raw
    derender: DerenderNotes
