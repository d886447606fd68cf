"""Hop 4: token IDs to OpenAI objects, a whole answer or one chunk of a stream.

A stream's state travels with each call, so any derender member can take any call, and a failed call may be
repeated on another member. What a chunk needs to know of the request is sent with the first call and then
named by a digest; a member that does not know the digest says so (409), and the call is repeated once in
full. A derender tier that does not speak this extension is sent everything each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.hops.errors import Refused
from orchestrator.hops.messages import ChunkFinish, DerenderStreamAnswer
from orchestrator.hops.render import PATHS, Endpoint
from orchestrator.hops.transport import Transport, decoded, encode, garbled
from render_tier.protocol.session import Notes

_answers = msgspec.json.Decoder(DerenderStreamAnswer)
_finishes = msgspec.json.Decoder(ChunkFinish)

CONTEXT_REQUIRED = 409

REQUEST_FIELDS: Mapping[Endpoint, str] = {
    "chat": "chat_request",
    "completions": "completion_request",
    "messages": "messages_request",
    "responses": "responses_request",
}


@dataclass(frozen=True, slots=True)
class Context:
    """What derender must know of the request: the client's body and the prompt's IDs, both as JSON."""

    endpoint: Endpoint
    model: str | None
    request: msgspec.Raw
    prompt_token_ids: msgspec.Raw
    prompt_tokens: int


@dataclass(slots=True)
class StreamState:
    """One choice's place in its stream, carried from call to call."""

    state: msgspec.Raw | None = None
    digest: str | None = None


class Derendered(msgspec.Struct, frozen=True, gc=False):
    """``events`` are ready for the client: one chunk, or what an API with many types of events makes of it.
    ``completion_tokens`` and ``reasoning_tokens`` count the choice so far; they are None when the tier does
    not report them."""

    events: Sequence[msgspec.Raw]
    model: str | None
    finished: bool
    empty: bool
    completion_tokens: int | None
    reasoning_tokens: int | None


class DerenderClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def chunk(
        self,
        base_url: str,
        context: Context,
        stream: StreamState,
        generate_chunk: Mapping[str, Any],
        headers: Mapping[str, str],
        budget: float,
    ) -> Derendered:
        """Derender one chunk and advance ``stream``, which is left as it was when the call fails."""
        url = f"{base_url}{PATHS[context.endpoint]}/derender"
        request: dict[str, Any] = {
            "stream": True,
            "model": context.model,
            "generate_chunk": generate_chunk,
            "stream_state": stream.state,
            "prompt_tokens": context.prompt_tokens,
        }
        full = {
            REQUEST_FIELDS[context.endpoint]: context.request,
            "prompt_token_ids": context.prompt_token_ids,
        }
        first = request | (full if stream.digest is None else {"context": stream.digest})
        try:
            reply = await self._transport.call(
                "derender", "POST", url, encode(first), budget=budget, headers=headers
            )
        except Refused as error:
            if error.status != CONTEXT_REQUIRED or stream.digest is None:
                raise
            reply = await self._transport.call(
                "derender", "POST", url, encode(request | full), budget=budget, headers=headers
            )
        answer = decoded(_answers, "derender", url, reply.body)
        done = derendered(answer.chunk, answer.events, answer.derender, url)
        stream.state = answer.stream_state
        stream.digest = answer.derender.context if answer.derender else None
        return done

    async def whole(
        self,
        base_url: str,
        endpoint: Endpoint,
        request: Mapping[str, Any],
        headers: Mapping[str, str],
        budget: float,
    ) -> bytes:
        """The OpenAI response body for finished generate replies."""
        url = f"{base_url}{PATHS[endpoint]}/derender"
        reply = await self._transport.call(
            "derender", "POST", url, encode(request), budget=budget, headers=headers
        )
        return reply.body


def derendered(
    chunk: msgspec.Raw, events: list[msgspec.Raw] | None, notes: Notes | None, source: str
) -> Derendered:
    """What an answer says. ``source`` names its sender. Raises ``HopError`` for what is no chunk."""
    if events is not None:
        if notes is None:
            raise garbled("derender", source, ValueError("events without notes"))
        return Derendered(
            events, None, notes.finished, notes.empty, notes.completion_tokens, notes.reasoning_tokens
        )
    finish = decoded(_finishes, "derender", source, chunk)
    return Derendered(
        events=(chunk,),
        model=finish.model,
        finished=bool(finish.choices) and finish.choices[0].finish_reason is not None,
        empty=notes.empty if notes else False,
        completion_tokens=notes.completion_tokens if notes else None,
        reasoning_tokens=notes.reasoning_tokens if notes else None,
    )
