"""Derender, the facade: a request body in, the response body out. Synchronous, CPU only, safe for threads.

Chat, completions, messages and responses, whole and by the chunk. Everything a stream needs later is in the
state that it answers with; this object keeps only caches, of resolved contexts and of streams, which save
work and change no answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from render_tier.derendering.bounds import Bounds
from render_tier.derendering.context import Kind
from render_tier.derendering.contexts import Contexts
from render_tier.derendering.served import ServedModel, served_name
from render_tier.derendering.settings import DerenderSettings
from render_tier.derendering.stream_cache import StreamCache
from render_tier.derendering.streams import Source, Streams
from render_tier.derendering.whole import WholeAnswers
from render_tier.protocol.derender import (
    ChatDerender,
    CompletionDerender,
    MessagesDerender,
    ResponsesDerender,
    StreamStart,
)
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.unreadable import UNREADABLE
from render_tier.protocol.validation import misshapen

_chat_decoder: Final = msgspec.json.Decoder(ChatDerender)
_completion_decoder: Final = msgspec.json.Decoder(CompletionDerender)
_messages_decoder: Final = msgspec.json.Decoder(MessagesDerender)
_responses_decoder: Final = msgspec.json.Decoder(ResponsesDerender)
_encoder: Final = msgspec.json.Encoder()

Body = TypeVar("Body", ChatDerender, CompletionDerender, MessagesDerender, ResponsesDerender)
Message = TypeVar("Message")


class Derenderer:
    """``chat``, ``completions``, ``messages`` and ``responses`` take one request body and return one response
    body, both JSON; every refusal is an `ApiError`. ``clock`` gives Unix seconds, for ``created`` where the
    engine's answer has none. ``observer`` is told how each streaming call found its stream."""

    def __init__(
        self,
        model: ServedModel,
        settings: DerenderSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._model = model
        self._clock = clock
        self.observer: Callable[[Source], None] | None = None
        self.contexts = Contexts(model, settings)
        self.cache = StreamCache(
            settings.stream_cache_entries,
            settings.stream_cache_bytes,
            settings.stream_cache_seconds,
            time.monotonic,
        )
        bounds = Bounds(model, settings)
        self._whole = WholeAnswers(model, bounds, self.contexts, self._created)
        self.streams = Streams(model, settings, bounds, self.contexts, self.cache, self._created, self._found)

    def chat(self, body: bytes) -> bytes:
        """``POST /v1/chat/completions/derender``."""
        return self._answer("chat", decoded(_chat_decoder, body), self._whole.chat)

    def completions(self, body: bytes) -> bytes:
        """``POST /v1/completions/derender``."""
        return self._answer("completion", decoded(_completion_decoder, body), self._whole.completion)

    def responses(self, body: bytes) -> bytes:
        """``POST /v1/responses/derender``."""
        return self._answer("responses", decoded(_responses_decoder, body), self._whole.responses)

    def messages(self, body: bytes) -> bytes:
        """``POST /v1/messages/derender``."""
        return self._answer("messages", decoded(_messages_decoder, body), self._whole.messages)

    def _answer(self, kind: Kind, request: Body, whole: Callable[[Body, str], msgspec.Struct]) -> bytes:
        model = self.served_name(request.model)
        if not request.stream:
            return _encoder.encode(whole(request, model))
        prompt_tokens = request.prompt_tokens
        if isinstance(prompt_tokens, list):
            raise BadRequest("prompt_tokens must be a number when streaming", param="prompt_tokens")
        start = StreamStart(
            request.stream_state, request.request, request.prompt_token_ids, prompt_tokens, request.context
        )
        return _encoder.encode(self.streams.answer(kind, start, request.generate_chunk, model))

    def served_name(self, asked: str | None) -> str:
        """The name to answer with. Raises NotFound."""
        return served_name(self._model, asked)

    def _created(self, given_time: int | None) -> int:
        return int(self._clock()) if given_time is None else given_time

    def _found(self, source: Source) -> None:
        if self.observer is not None:
            self.observer(source)


def decoded(decoder: msgspec.json.Decoder[Message], body: bytes | str) -> Message:
    """The message in ``body``. Raises BadRequest that says what is wrong with it."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        location = tuple(
            part for part in path.rstrip("`").replace("[", ".").replace("]", "").split(".") if part
        )
        kind = "missing" if "missing required field" in text else "value_error"
        raise misshapen([{"type": kind, "loc": location, "msg": text}]) from None
    except UNREADABLE as error:
        raise misshapen([{"type": "json_invalid", "loc": (), "msg": f"JSON decode error: {error}"}]) from None
