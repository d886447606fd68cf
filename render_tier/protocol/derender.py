"""Hop 4, in: ``POST /v1/chat/completions/derender`` and ``/v1/completions/derender``.

One path takes whole answers and, with ``stream: true``, single chunks. What only the first call of a stream
needs (the request and the prompt's IDs) stays raw JSON: later calls hash it or leave it out.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from render_tier.protocol.generate import (
    ChoiceLogprobs,
    GenerateUsage,
    RequestMetrics,
)

ABSENT = msgspec.Raw()

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A number that travels in the state: bounded so that it can be written down."""


class TokensChoice(msgspec.Struct, kw_only=True, gc=False):
    """`generate.GenerateChoice` as derender reads it; unknown fields are dropped."""

    index: Count = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChoiceLogprobs | None = None


class TokensResponse(msgspec.Struct, kw_only=True):
    """`generate.GenerateResponse`: only token output can be derendered."""

    request_id: str
    choices: list[TokensChoice]
    created: Count | None = None
    usage: GenerateUsage | None = None
    prompt_token_ids: msgspec.Raw = ABSENT
    prompt_logprobs: list[msgspec.Raw] | None = None
    kv_transfer_params: dict[str, msgspec.Raw] | None = None
    metrics: RequestMetrics | None = None
    output_mode: Literal["tokens"] = "tokens"


class TokensChunk(msgspec.Struct, kw_only=True):
    """`generate.GenerateChunk`."""

    request_id: str
    choices: list[TokensChoice]
    created: Count | None = None
    usage: GenerateUsage | None = None
    prompt_token_ids: msgspec.Raw = ABSENT
    metrics: RequestMetrics | None = None
    output_mode: Literal["tokens"] = "tokens"
    position: Count | None = None
    """Ours: output tokens of the choice before this chunk. Where given, a state of another place in the
    stream is refused."""


class DerenderRequest(msgspec.Struct, kw_only=True):
    """What all bodies have in common: a stream's next chunk and its state when ``stream``, else whole
    answers. Each kind has a ``request`` of its own, under the name that its clients use."""

    stream: bool = False
    model: str | None = None
    generate_chunk: TokensChunk | None = None
    stream_state: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    context: str | None = None
    """Ours: the digest of a context sent before, in place of the request and ``prompt_token_ids``."""


class OneAnswerDerender(DerenderRequest, kw_only=True):
    """Of one prompt."""

    generate_response: TokensResponse | None = None
    prompt_tokens: Count | None = None


class ChatDerender(OneAnswerDerender, kw_only=True):
    request: msgspec.Raw = msgspec.field(default=ABSENT, name="chat_request")


class ResponsesDerender(OneAnswerDerender, kw_only=True):
    """OpenAI's Responses API, ours alone: as chat, with one choice. The request is always needed: the answer
    repeats it."""

    request: msgspec.Raw = msgspec.field(default=ABSENT, name="responses_request")


class MessagesDerender(OneAnswerDerender, kw_only=True):
    """Anthropic's API, ours alone: as chat."""

    request: msgspec.Raw = msgspec.field(default=ABSENT, name="messages_request")


class CompletionDerender(DerenderRequest, kw_only=True):
    """Completions: whole answers come one per prompt. ``prompt_tokens`` and ``prompt_token_ids`` are lists
    per prompt when whole, a number and a list of IDs when streaming."""

    generate_responses: list[TokensResponse] | None = None
    prompt_tokens: Count | list[Count] | None = None
    request: msgspec.Raw = msgspec.field(default=ABSENT, name="completion_request")


class StreamStart(msgspec.Struct, gc=False):
    """How a stream begins or goes on: ``request`` is the client's request, ``context`` stands for it and for
    the prompt's IDs."""

    stream_state: msgspec.Raw = ABSENT
    request: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    prompt_tokens: Count | None = None
    context: str | None = None


class StreamState(msgspec.Struct, kw_only=True):
    """``stream_state`` on the wire, where ``s`` is opaque (`derendering.state`); with neither field it is
    vLLM's."""

    v: int | msgspec.UnsetType = msgspec.UNSET
    s: str | msgspec.UnsetType = msgspec.UNSET


class PeerStreamState(msgspec.Struct, kw_only=True):
    """vLLM's ``stream_state``. The parsed path keeps the whole output, the plain path a window of tokens."""

    prev_tokens: list[str] = []
    prefix_offset: Count = 0
    read_offset: Count = 0
    role_sent: bool = False
    logprob_context_token_ids: list[int] = []
    logprob_text_offset: Count = 0
    output_token_ids: list[int] = []
    output_chunk_lens: list[int] = []
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = []


def given(raw: msgspec.Raw) -> bool:
    """Whether a raw field was sent and is not null."""
    return bytes(raw) not in (b"", b"null")
