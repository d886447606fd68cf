"""Derender, the facade: a request body in, the response body out. Synchronous, CPU only, safe for threads.

Chat and completions, whole and by the chunk. Everything a stream needs later is in the state that it answers
with; this object keeps only a cache of resolved contexts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from render_tier.core.events import Event, Text
from render_tier.core.table import Region
from render_tier.derendering.bounds import Bounds
from render_tier.derendering.chat import delta, message
from render_tier.derendering.context import Context, ContextCache, ContextResolver, Kind
from render_tier.derendering.logprobs import completion_logprobs
from render_tier.derendering.output import Output, Step
from render_tier.derendering.peer_state import take_over
from render_tier.derendering.served import ServedModel, served_name
from render_tier.derendering.settings import DerenderSettings
from render_tier.derendering.state import Saved, StateCodec, Stream
from render_tier.protocol.derender import (
    ChatDerender,
    CompletionDerender,
    PeerStreamState,
    StreamState,
    TokensChunk,
    TokensResponse,
    given,
)
from render_tier.protocol.errors import BadRequest, ContextRequired
from render_tier.protocol.generate import GenerateUsage, PromptTokensDetails
from render_tier.protocol.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChunkAnswer,
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    DerenderNotes,
    LogprobsOut,
    Usage,
)
from render_tier.protocol.validation import misshapen

NEEDS_REQUEST: Final = (
    "chat_request is required when a tool or reasoning parser is configured because plain detokenization "
    "would leak raw parser markup into content."
)
NEEDS_PROMPT: Final = (
    "prompt_token_ids is required when a tool or reasoning parser is configured: without it nothing tells "
    "whether the prompt left reasoning open."
)

_chat_decoder: Final = msgspec.json.Decoder(ChatDerender)
_completion_decoder: Final = msgspec.json.Decoder(CompletionDerender)
_peer_decoder: Final = msgspec.json.Decoder(PeerStreamState)
_encoder: Final = msgspec.json.Encoder()

Body = TypeVar("Body")


class Derenderer:
    """``chat`` and ``completions`` take one request body and return one response body, both JSON; every
    refusal is an `ApiError`. ``clock`` gives Unix seconds, for ``created`` where the engine's answer has
    none."""

    def __init__(
        self, model: ServedModel, settings: DerenderSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._model = model
        self._settings = settings
        self._clock = clock
        self._bounds = Bounds(model, settings)
        self._resolver = ContextResolver(model, settings)
        self._contexts = ContextCache(settings.context_cache_entries)
        self._codec = StateCodec(
            f"{model.fingerprint}\0{settings.reasoning_parser}\0{settings.tool_parser}", settings.state_key
        )

    def chat(self, body: bytes) -> bytes:
        """``POST /v1/chat/completions/derender``."""
        request = _decode(_chat_decoder, body)
        model = served_name(self._model, request.model)
        if request.stream:
            return _encoder.encode(self._chat_chunk(request, model))
        return _encoder.encode(self._chat_whole(request, model))

    def completions(self, body: bytes) -> bytes:
        """``POST /v1/completions/derender``."""
        request = _decode(_completion_decoder, body)
        model = served_name(self._model, request.model)
        if request.stream:
            return _encoder.encode(self._completion_chunk(request, model))
        return _encoder.encode(self._completion_whole(request, model))

    # --- whole ---

    def _chat_whole(self, request: ChatDerender, model: str) -> ChatCompletion:
        response = request.generate_response
        if response is None:
            raise _missing("generate_response")
        self._bounds.responses([response])
        prompt = request.prompt_token_ids if given(request.prompt_token_ids) else response.prompt_token_ids
        if not given(request.chat_request) and request.context is None and self._resolver.has_parser:
            raise BadRequest(NEEDS_REQUEST)
        context = self._context("chat", request.chat_request, prompt, request.context)
        choices = []
        completion_tokens = reasoning_tokens = 0
        for choice in response.choices:
            output = Output(context, self._model.eos_token_ids)
            step = output.advance(choice, whole=True)
            completion_tokens += step.used
            reasoning_tokens += output.reasoning_tokens
            choices.append(
                ChatChoice(
                    index=choice.index,
                    message=message(step.events, context, response.request_id, choice.index),
                    logprobs=_logprobs(step),
                    finish_reason=step.finish_reason,
                    stop_reason=step.stop_reason,
                    token_ids=(choice.token_ids or [])[: step.used] if context.returns_token_ids else None,
                )
            )
        return ChatCompletion(
            id=response.request_id,
            created=self._created(response.created),
            model=model,
            choices=choices,
            usage=_usage(
                self._prompt_tokens(request.prompt_tokens, context, response),
                completion_tokens,
                response.usage,
                reasoning_tokens if context.counts_reasoning else None,
            ),
            prompt_logprobs=response.prompt_logprobs,
            prompt_token_ids=_passed_on(response.prompt_token_ids, context),
            kv_transfer_params=response.kv_transfer_params,
            metrics=response.metrics,
        )

    def _completion_whole(self, request: CompletionDerender, model: str) -> Completion:
        responses = request.generate_responses
        if responses is None:
            raise _missing("generate_responses")
        if not responses:
            raise BadRequest("generate_responses must not be empty", param="generate_responses")
        self._bounds.responses(responses)
        prompts = self._prompt_lists(request, len(responses))
        counts = request.prompt_tokens
        if counts is not None and (not isinstance(counts, list) or len(counts) != len(responses)):
            raise BadRequest(
                "prompt_tokens must be a list parallel to generate_responses", param="prompt_tokens"
            )
        choices: list[CompletionChoice] = []
        prompt_tokens = completion_tokens = 0
        for number, response in enumerate(responses):
            prompt = prompts[number] if given(prompts[number]) else response.prompt_token_ids
            context = self._context("completion", request.completion_request, prompt, request.context)
            prompt_tokens += self._prompt_tokens(counts[number] if counts else None, context, response)
            for choice in response.choices:
                step = Output(context, self._model.eos_token_ids).advance(choice, whole=True)
                completion_tokens += step.used
                logprobs = None if step.logprobs is None else completion_logprobs(step.logprobs, 0)[0]
                choices.append(
                    CompletionChoice(
                        index=len(choices),
                        text=_text(step.events),
                        logprobs=logprobs,
                        finish_reason=step.finish_reason,
                        stop_reason=step.stop_reason,
                        token_ids=(choice.token_ids or [])[: step.used]
                        if context.returns_token_ids
                        else None,
                        prompt_logprobs=response.prompt_logprobs,
                        prompt_token_ids=_passed_on(response.prompt_token_ids, context),
                    )
                )
        first = responses[0]
        same = all(other.kv_transfer_params == first.kv_transfer_params for other in responses[1:])
        return Completion(
            id=first.request_id,
            created=self._created(first.created),
            model=model,
            choices=choices,
            usage=_usage(prompt_tokens, completion_tokens, _summed(responses), None),
            kv_transfer_params=first.kv_transfer_params if same else None,
            metrics=first.metrics if len(responses) == 1 else None,
        )

    def _prompt_lists(self, request: CompletionDerender, count: int) -> list[Raw]:
        if not given(request.prompt_token_ids):
            return [Raw()] * count
        try:
            prompts = msgspec.json.decode(request.prompt_token_ids, type=list[Raw])
        except msgspec.MsgspecError as error:
            raise misshapen(
                [{"type": "list_type", "loc": ("prompt_token_ids",), "msg": str(error)}]
            ) from None
        if len(prompts) != count:
            raise BadRequest(
                f"prompt_token_ids length ({len(prompts)}) must match generate_responses length ({count})",
                param="prompt_token_ids",
            )
        return prompts

    # --- by the chunk ---

    def _chat_chunk(self, request: ChatDerender, model: str) -> ChunkAnswer:
        chunk = _one_choice(request.generate_chunk, "derender_chat_stream")
        if self._resolver.has_parser and not given(request.stream_state) and request.context is None:
            if not given(request.chat_request):
                raise BadRequest(NEEDS_REQUEST)
            if not given(request.prompt_token_ids):
                raise BadRequest(NEEDS_PROMPT)
        stream, missed = self._stream(
            "chat",
            request.stream_state,
            request.chat_request,
            request.prompt_token_ids,
            request.context,
            chunk,
        )
        context, output = stream.output.context, stream.output
        choices = []
        shows = False
        for choice in chunk.choices:
            step = self._advance(stream, chunk)
            role = not stream.role_sent
            stream.role_sent = True
            out = delta(
                missed + step.events,
                context,
                chunk.request_id,
                choice.index,
                role=role,
                named_before=stream.named_before,
            )
            token_ids = (choice.token_ids or [])[: step.used] if context.returns_token_ids else None
            choices.append(
                ChatChunkChoice(
                    choice.index, out, _logprobs(step), step.finish_reason, step.stop_reason, token_ids
                )
            )
            said = role or out.content is not None or out.reasoning is not None
            shows = said or bool(out.tool_calls) or _shows(step, token_ids)
        return self._answer(
            stream,
            chunk,
            ChatChunk(
                id=chunk.request_id,
                created=stream.created,
                model=model,
                choices=choices,
                usage=self._chunk_usage(chunk, request.prompt_tokens, output),
                prompt_token_ids=_passed_on(chunk.prompt_token_ids, context),
                metrics=chunk.metrics,
            ),
            shows,
        )

    def _completion_chunk(self, request: CompletionDerender, model: str) -> ChunkAnswer:
        chunk = _one_choice(request.generate_chunk, "derender_completion_stream")
        stream, _missed = self._stream(
            "completion",
            request.stream_state,
            request.completion_request,
            request.prompt_token_ids,
            request.context,
            chunk,
        )
        context, output = stream.output.context, stream.output
        choices = []
        shows = False
        prompt_token_ids = _passed_on(chunk.prompt_token_ids, context)
        for choice in chunk.choices:
            step = self._advance(stream, chunk)
            logprobs = None
            if step.logprobs is not None:
                logprobs, stream.text_offset = completion_logprobs(step.logprobs, stream.text_offset)
            text = _text(step.events)
            token_ids = (choice.token_ids or [])[: step.used] if context.returns_token_ids else None
            choices.append(
                CompletionChunkChoice(
                    index=choice.index,
                    text=text,
                    logprobs=logprobs,
                    finish_reason=step.finish_reason,
                    stop_reason=step.stop_reason,
                    prompt_token_ids=prompt_token_ids,
                    token_ids=token_ids,
                )
            )
            shows = bool(text) or _shows(step, token_ids)
        prompt_tokens = request.prompt_tokens
        if isinstance(prompt_tokens, list):
            raise BadRequest("prompt_tokens must be a number when streaming", param="prompt_tokens")
        return self._answer(
            stream,
            chunk,
            CompletionChunk(
                id=chunk.request_id,
                created=stream.created,
                model=model,
                choices=choices,
                usage=self._chunk_usage(chunk, prompt_tokens, output),
                metrics=chunk.metrics,
            ),
            shows,
        )

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
        delta_length = len(choice.token_ids or ())
        self._bounds.output_length(stream.output.context.prompt_length, stream.tokens, delta_length)
        step = stream.output.advance(choice)
        stream.tokens += step.used
        return step

    def _answer(
        self, stream: Stream, chunk: TokensChunk, out: ChatChunk | CompletionChunk, shows: bool
    ) -> ChunkAnswer:
        passes = chunk.usage is not None or chunk.metrics is not None or out.usage is not None
        context = stream.output.context
        prompt = chunk.choices and given(chunk.prompt_token_ids) and context.returns_token_ids
        notes = DerenderNotes(
            context.digest.hex(),
            stream.tokens,
            stream.output.reasoning_tokens,
            not (shows or passes or prompt),
        )
        return ChunkAnswer(out, self._codec.encode(stream), notes)

    def _stream(
        self, kind: Kind, state: Raw, request: Raw, prompt: Raw, named: str | None, chunk: TokensChunk
    ) -> tuple[Stream, list[Event]]:
        """The stream as it stands, and what the client of a vLLM-shaped state does not have yet."""
        eos = self._model.eos_token_ids
        if given(state):
            saved, peer = self._read_state(state)
            if saved is not None:
                stream = self._codec.restore(
                    saved, self._state_context(kind, saved, request, prompt, named), eos
                )
                if chunk.created is not None:
                    stream.created = chunk.created
                return stream, []
            if kind == "chat" and self._resolver.has_parser and named is None and not given(request):
                raise BadRequest(NEEDS_REQUEST)
        else:
            peer = None
        context = self._context(kind, request, prompt, named)
        stream = Stream(Output(context, eos), self._created(chunk.created))
        if peer is None:
            return stream, []
        delta_length = sum(len(choice.token_ids or ()) for choice in chunk.choices)
        return stream, take_over(peer, stream, self._model, delta_length)

    def _read_state(self, raw: Raw) -> tuple[Saved | None, PeerStreamState | None]:
        data = bytes(raw)
        limit = max(self._settings.max_state_bytes, 32 * self._model.max_model_len)
        if len(data) > limit:
            raise BadRequest(f"invalid stream_state: longer than {limit} bytes", param="stream_state")
        try:
            keys = msgspec.json.decode(data, type=_StateKind)
            if keys.s is not None:
                ours = msgspec.json.decode(data, type=StreamState)
                return self._codec.open(ours.v, ours.s), None
            return None, _peer_decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise misshapen([{"type": "value_error", "loc": ("stream_state",), "msg": str(error)}]) from None

    def _created(self, given_time: int | None) -> int:
        return int(self._clock()) if given_time is None else given_time

    # --- contexts ---

    def _context(self, kind: Kind, request: Raw, prompt: Raw, named: str | None) -> Context:
        if named is not None and not given(request):
            return self._known(kind, _digest(named))
        raw_request = bytes(request) if given(request) else b""
        raw_prompt = bytes(prompt) if given(prompt) else b""
        digest = self._resolver.digest(kind, raw_request, raw_prompt)
        context = self._contexts.get(digest)
        if context is None:
            context = self._resolver.resolve(kind, digest, raw_request, raw_prompt)
            self._contexts.put(context)
        return context

    def _state_context(
        self, kind: Kind, saved: Saved, request: Raw, prompt: Raw, named: str | None
    ) -> Context:
        """The context that a state belongs to. What the call sends beside the state must be the same
        request; a part left out is not compared."""
        if named is not None and _digest(named) != saved.context:
            raise _other_request()
        whole = given(request) and given(prompt)
        if not whole:
            known = self._contexts.get(saved.context)
            if known is not None:
                return _of_kind(kind, known)
        raw_request = bytes(request) if given(request) else b""
        raw_prompt = bytes(prompt) if given(prompt) else b""
        digest = self._resolver.digest(kind, raw_request, raw_prompt)
        if digest != saved.context:
            raise _other_request() if whole else _context_required()
        context = self._contexts.get(digest)
        if context is None:
            context = self._resolver.resolve(kind, digest, raw_request, raw_prompt)
            self._contexts.put(context)
        return context

    def _known(self, kind: Kind, digest: bytes) -> Context:
        context = self._contexts.get(digest)
        if context is None:
            raise _context_required()
        return _of_kind(kind, context)

    # --- usage ---

    def _prompt_tokens(self, count: int | None, context: Context, response: TokensResponse) -> int:
        if count is not None:
            return count
        if context.prompt_length or response.usage is None:
            return context.prompt_length
        return response.usage.prompt_tokens

    def _chunk_usage(self, chunk: TokensChunk, prompt_tokens: int | None, output: Output) -> Usage | None:
        usage = chunk.usage
        if usage is None:
            return None
        completion = usage.completion_tokens
        if output.machine.stopped is not None:
            completion = min(completion, output.machine.tokens)
        reasoning = output.reasoning_tokens if output.context.counts_reasoning else None
        return _usage(
            usage.prompt_tokens if prompt_tokens is None else prompt_tokens, completion, usage, reasoning
        )


class _StateKind(msgspec.Struct):
    """Tells our state from vLLM's: only ours has ``s``."""

    s: object = None


def _decode(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        location = tuple(
            part for part in path.rstrip("`").replace("[", ".").replace("]", "").split(".") if part
        )
        kind = "missing" if "missing required field" in text else "value_error"
        raise misshapen([{"type": kind, "loc": location, "msg": text}]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise misshapen([{"type": "json_invalid", "loc": (), "msg": f"JSON decode error: {error}"}]) from None


def _missing(name: str) -> BadRequest:
    return misshapen([{"type": "missing", "loc": (name,), "msg": "Field required"}])


def _one_choice(chunk: TokensChunk | None, where: str) -> TokensChunk:
    if chunk is None:
        raise _missing("generate_chunk")
    if len(chunk.choices) > 1:
        raise BadRequest(f"{where} expects at most one choice per chunk (got {len(chunk.choices)}).")
    return chunk


def _digest(named: str) -> bytes:
    try:
        return bytes.fromhex(named)
    except ValueError:
        raise BadRequest("context is not a digest", param="context") from None


def _of_kind(kind: Kind, context: Context) -> Context:
    if context.kind != kind:
        raise _other_request()
    return context


def _other_request() -> BadRequest:
    return BadRequest("invalid stream_state: it belongs to another request", param="stream_state")


def _context_required() -> ContextRequired:
    return ContextRequired(
        "the context of this stream is not known here: send the request and prompt_token_ids with the same "
        "stream_state",
        param="context",
    )


def _logprobs(step: Step) -> LogprobsOut | None:
    return None if step.logprobs is None else LogprobsOut(step.logprobs)


def _shows(step: Step, token_ids: list[int] | None) -> bool:
    return step.finish_reason is not None or bool(step.logprobs) or bool(token_ids)


def _text(events: list[Event]) -> str:
    return "".join([event.text for event in events if type(event) is Text and event.region is Region.CONTENT])


def _passed_on(prompt_token_ids: Raw, context: Context) -> Raw | None:
    return prompt_token_ids if context.returns_token_ids and given(prompt_token_ids) else None


def _usage(prompt: int, completion: int, engine: GenerateUsage | None, reasoning: int | None) -> Usage:
    details = engine.prompt_tokens_details if engine is not None else None
    return Usage(
        prompt,
        prompt + completion,
        completion,
        details,
        None if reasoning is None else {"reasoning_tokens": reasoning},
    )


def _summed(responses: list[TokensResponse]) -> GenerateUsage | None:
    """The cached prompt tokens of all answers, when every engine reported them."""
    cached = 0
    for response in responses:
        details = response.usage.prompt_tokens_details if response.usage is not None else None
        if details is None or details.cached_tokens is None:
            return None
        cached += details.cached_tokens
    return GenerateUsage(prompt_tokens_details=PromptTokensDetails(cached))
