"""Streams: one call a chunk, or held open in a session; the same stream either way.

A stream begins with its first chunk, or is found again by the state that it gave: in the cache, by restoring
the state, or, for vLLM's state, by reading the output so far again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw

from render_tier.derendering import anthropic, responses
from render_tier.derendering.bounds import Bounds
from render_tier.derendering.chat import delta
from render_tier.derendering.context import Kind
from render_tier.derendering.contexts import Contexts
from render_tier.derendering.logprobs import completion_logprobs
from render_tier.derendering.output import Output, Step
from render_tier.derendering.peer_state import take_over
from render_tier.derendering.pieces import (
    content,
    logprobs,
    missing,
    needs_request,
    passed_on,
    prompt_length,
    token_ids,
)
from render_tier.derendering.served import ServedModel
from render_tier.derendering.settings import DerenderSettings
from render_tier.derendering.state import (
    VERSION,
    StateCodec,
    Stream,
    refused_incomplete,
    refused_version,
    request_digest,
)
from render_tier.derendering.stream_cache import StreamCache
from render_tier.derendering.usage import usage
from render_tier.protocol.anthropic_answers import MessageEvent
from render_tier.protocol.derender import (
    PeerStreamState,
    StreamStart,
    StreamState,
    TokensChunk,
    given,
)
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.response_answers import ResponseEvent
from render_tier.protocol.responses import (
    ChatChunk,
    ChatChunkChoice,
    ChunkAnswer,
    CompletionChunk,
    CompletionChunkChoice,
    DerenderNotes,
    EventsAnswer,
    StreamStateOut,
    Usage,
)
from render_tier.protocol.unreadable import UNREADABLE
from render_tier.protocol.validation import misshapen

NEEDS_PROMPT: Final = (
    "prompt_token_ids is required when a tool or reasoning parser is configured: without it nothing tells "
    "whether the prompt left reasoning open."
)

Source = Literal["new", "cache", "state", "replay"]
"""Where a call found its stream: it begins, was kept, was restored, or was read again."""

_state_decoder: Final = msgspec.json.Decoder(StreamState)
_peer_decoder: Final = msgspec.json.Decoder(PeerStreamState)


class Streams:
    """Of one model and configuration. ``created`` gives the time of a stream whose chunks have none;
    ``found`` is told how each call found its stream. Every refusal is an ApiError."""

    def __init__(
        self,
        model: ServedModel,
        settings: DerenderSettings,
        bounds: Bounds,
        contexts: Contexts,
        cache: StreamCache,
        created: Callable[[int | None], int],
        found: Callable[[Source], None],
    ) -> None:
        self._model = model
        self._bounds = bounds
        self._contexts = contexts
        self._cache = cache
        self._created = created
        self._found = found
        self._max_state_bytes = max(settings.max_state_bytes, 32 * model.max_model_len)
        self._codec = StateCodec(
            f"{model.fingerprint}\0{settings.reasoning_parser}\0{settings.tool_parser}", settings.state_keys
        )

    def answer(
        self, kind: Kind, start: StreamStart, chunk: TokensChunk | None, model: str
    ) -> ChunkAnswer | EventsAnswer:
        """One call with one chunk. ``model``: the name to answer with."""
        chunk = _one_choice(chunk, kind)
        if (
            kind != "completion"
            and self._contexts.has_parser
            and not given(start.stream_state)
            and start.context is None
        ):
            if not given(start.request):
                raise needs_request(kind)
            if not given(start.prompt_token_ids):
                raise BadRequest(NEEDS_PROMPT)
        stream = self.begin(kind, start, chunk.request_id, chunk.created, _length(chunk))
        out, notes = self.read(stream, chunk, start.prompt_tokens, model)
        state = self.state(stream)
        self._cache.put(state.s, stream)
        if isinstance(out, list):
            return EventsAnswer(out, state, notes)
        return ChunkAnswer(out, state, notes)

    def begin(
        self, kind: Kind, start: StreamStart, request_id: str, created: int | None, following: int = 0
    ) -> Stream:
        """The stream as it stands. ``following``: tokens about to be read, for the length check of vLLM's
        state."""
        request = request_digest(request_id)
        peer: PeerStreamState | None = None
        if given(start.stream_state):
            state = self._decoded(start.stream_state)
            if isinstance(state, str):
                return self._continued(kind, start, state, request, created)
            peer = state
            if kind in ("messages", "responses"):
                raise BadRequest("invalid stream_state: it is not one of this endpoint", param="stream_state")
            if (
                kind == "chat"
                and self._contexts.has_parser
                and start.context is None
                and not given(start.request)
            ):
                raise needs_request(kind)
        context = self._contexts.of_request(kind, start.request, start.prompt_token_ids, start.context)
        stream = Stream(Output(context, self._model.eos_token_ids), request, self._created(created))
        if peer is not None:
            stream.missed = take_over(peer, stream, self._model, following)
        self._found("new" if peer is None else "replay")
        return stream

    def read(
        self, stream: Stream, chunk: TokensChunk, prompt_tokens: int | None, model: str
    ) -> tuple[ChatChunk | CompletionChunk | list[MessageEvent] | list[ResponseEvent], DerenderNotes]:
        """Read a chunk of at most one choice. The stream is of no use any more when this raises."""
        kind = stream.output.context.kind
        if kind == "chat":
            return self._chat(stream, chunk, prompt_tokens, model)
        if kind == "completion":
            return self._completion(stream, chunk, prompt_tokens, model)
        return self._events(stream, chunk, prompt_tokens, model)

    def state(self, stream: Stream) -> StreamStateOut:
        return self._codec.encode(stream)

    def _continued(
        self, kind: Kind, start: StreamStart, state: str, request: bytes, created: int | None
    ) -> Stream:
        named = start.context
        stream = self._cache.take(state)
        if stream is not None:
            if stream.request != request:
                # As the state itself would be refused; the stream stays as it was.
                self._cache.put(state, stream)
                self._codec.open(state, request)
            digest = stream.output.context.digest
            self._contexts.of_state(kind, digest, start.request, start.prompt_token_ids, named)
            self._found("cache")
        else:
            saved = self._codec.open(state, request)
            context = self._contexts.of_state(
                kind, saved.context, start.request, start.prompt_token_ids, named
            )
            stream = self._codec.restore(saved, context, self._model.eos_token_ids)
            self._found("state")
        if created is not None:
            stream.created = created
        return stream

    def _decoded(self, raw: Raw) -> str | PeerStreamState:
        data = bytes(raw)
        if len(data) > self._max_state_bytes:
            raise BadRequest(
                f"invalid stream_state: longer than {self._max_state_bytes} bytes", param="stream_state"
            )
        try:
            ours = _state_decoder.decode(data)
            if ours.v is UNSET and ours.s is UNSET:
                return _peer_decoder.decode(data)
        except UNREADABLE as error:
            raise misshapen([{"type": "value_error", "loc": ("stream_state",), "msg": str(error)}]) from None
        if ours.v is UNSET or ours.s is UNSET:
            raise refused_incomplete()
        if ours.v != VERSION:
            raise refused_version(ours.v)
        return ours.s

    def _chat(
        self, stream: Stream, chunk: TokensChunk, prompt_tokens: int | None, model: str
    ) -> tuple[ChatChunk, DerenderNotes]:
        context = stream.output.context
        choices = []
        shows = False
        for choice in chunk.choices:
            step = self._advance(stream, chunk)
            role = not stream.role_sent
            stream.role_sent = True
            missed, stream.missed = stream.missed, []
            out = delta(
                missed + step.events if missed else step.events,
                context,
                chunk.request_id,
                choice.index,
                role=role,
                named_before=stream.named_before,
            )
            ids = token_ids(choice, step, context)
            choices.append(
                ChatChunkChoice(choice.index, out, logprobs(step), step.finish_reason, step.stop_reason, ids)
            )
            said = role or out.content is not None or out.reasoning is not None
            shows = said or bool(out.tool_calls) or _shows(step, ids)
        made = ChatChunk(
            id=chunk.request_id,
            created=stream.created,
            model=model,
            choices=choices,
            usage=_usage(chunk, prompt_tokens, stream),
            prompt_token_ids=passed_on(chunk.prompt_token_ids, context),
            metrics=chunk.metrics,
        )
        return made, _notes(stream, chunk, shows)

    def _completion(
        self, stream: Stream, chunk: TokensChunk, prompt_tokens: int | None, model: str
    ) -> tuple[CompletionChunk, DerenderNotes]:
        context = stream.output.context
        choices = []
        shows = False
        prompt_token_ids = passed_on(chunk.prompt_token_ids, context)
        for choice in chunk.choices:
            step = self._advance(stream, chunk)
            entries = None
            if step.logprobs is not None:
                entries, stream.text_offset = completion_logprobs(step.logprobs, stream.text_offset)
            missed, stream.missed = stream.missed, []
            text = content(missed + step.events if missed else step.events)
            ids = token_ids(choice, step, context)
            choices.append(
                CompletionChunkChoice(
                    index=choice.index,
                    text=text,
                    logprobs=entries,
                    finish_reason=step.finish_reason,
                    stop_reason=step.stop_reason,
                    prompt_token_ids=prompt_token_ids,
                    token_ids=ids,
                )
            )
            shows = bool(text) or _shows(step, ids)
        made = CompletionChunk(
            id=chunk.request_id,
            created=stream.created,
            model=model,
            choices=choices,
            usage=_usage(chunk, prompt_tokens, stream),
            metrics=chunk.metrics,
        )
        return made, _notes(stream, chunk, shows)

    def _events(
        self, stream: Stream, chunk: TokensChunk, prompt_tokens: int | None, model: str
    ) -> tuple[list[MessageEvent] | list[ResponseEvent], DerenderNotes]:
        output = stream.output
        context = output.context
        events: list[MessageEvent] | list[ResponseEvent] = []
        over = output.finished
        step = self._advance(stream, chunk) if chunk.choices else None
        if step is not None and not over:
            made_by = anthropic.chunk_events if context.kind == "messages" else responses.chunk_events
            count = prompt_length(prompt_tokens, context, chunk.usage)
            events = made_by(stream, step, chunk, count, model)
        notes = DerenderNotes(
            context.digest.hex(), stream.tokens, output.reasoning_tokens, not events, output.finished
        )
        return events, notes

    def _advance(self, stream: Stream, chunk: TokensChunk) -> Step:
        choice = chunk.choices[0]
        self._bounds.choice(choice)
        if stream.index < 0:
            stream.index = choice.index
        elif stream.index != choice.index:
            raise BadRequest(
                f"invalid stream_state: it belongs to choice {stream.index}, not {choice.index}",
                param="stream_state",
            )
        if chunk.position is not None and chunk.position != stream.tokens and not stream.finished:
            raise BadRequest(
                f"invalid stream_state: it is of position {stream.tokens}, the chunk of {chunk.position}",
                param="stream_state",
            )
        delta_length = len(choice.token_ids or ())
        self._bounds.output_length(stream.output.context.prompt_length, stream.tokens, delta_length)
        step = stream.output.advance(choice)
        stream.tokens += step.used
        return step


def _notes(stream: Stream, chunk: TokensChunk, shows: bool) -> DerenderNotes:
    context = stream.output.context
    passes = chunk.usage is not None or chunk.metrics is not None
    prompt = chunk.choices and given(chunk.prompt_token_ids) and context.returns_token_ids
    return DerenderNotes(
        context.digest.hex(), stream.tokens, stream.output.reasoning_tokens, not (shows or passes or prompt)
    )


def _usage(chunk: TokensChunk, prompt_tokens: int | None, stream: Stream) -> Usage | None:
    counted, output = chunk.usage, stream.output
    if counted is None:
        return None
    completion = counted.completion_tokens
    if output.stopped:
        completion = min(completion, stream.tokens)
    return usage(
        counted.prompt_tokens if prompt_tokens is None else prompt_tokens,
        completion,
        counted,
        output.counted_reasoning,
    )


def _one_choice(chunk: TokensChunk | None, kind: Kind) -> TokensChunk:
    if chunk is None:
        raise missing("generate_chunk")
    check_choices(chunk, f"derender_{kind}_stream")
    return chunk


def check_choices(chunk: TokensChunk, where: str) -> None:
    """Raises BadRequest for more than one choice."""
    if len(chunk.choices) > 1:
        raise BadRequest(f"{where} expects at most one choice per chunk (got {len(chunk.choices)}).")


def _length(chunk: TokensChunk) -> int:
    return sum(len(choice.token_ids or ()) for choice in chunk.choices)


def _shows(step: Step, ids: list[int] | None) -> bool:
    return step.finish_reason is not None or bool(step.logprobs) or bool(ids)
