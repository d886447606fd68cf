"""OpenAI's chat and completions: chunks of one shape, a usage chunk if asked for, then ``[DONE]``.

A stream ends with ``[DONE]`` also after an error event. The ``openai`` client raises on the error event and
never reads further; readers that wait for ``[DONE]`` do not hang; and it is what the coupled server sends.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orchestrator.core.assembly import choiceless_frame, error_frames, with_fields
from orchestrator.core.dialects.dialect import Counted, StreamEnd, UnreadableAnswer
from orchestrator.core.sse import DONE_FRAME, KEEPALIVE_FRAME, frame
from orchestrator.core.usage import Usage
from render_tier.protocol.errors import ApiError
from render_tier.protocol.unreadable import UNREADABLE


class OpenAI:
    ends_with_usage = False

    def __init__(self, id_prefix: str, chunk_object: str) -> None:
        self.id_prefix = id_prefix
        self.keepalive = KEEPALIVE_FRAME
        self._chunk_object = chunk_object

    def frames(self, events: Sequence[msgspec.Raw], usage: Usage | None) -> bytes:
        [chunk] = events
        if usage is None:
            return frame(bytes(chunk))
        return frame(with_fields(chunk, {"usage": usage.as_json()}))

    def end(self, end: StreamEnd) -> bytes:
        fields = dict(end.extra)
        if end.usage is not None:
            fields = {"usage": end.usage.as_json(), **fields}
        if not fields:
            return DONE_FRAME
        last = choiceless_frame(self._chunk_object, end.response_id, end.created, end.model, fields)
        return last + DONE_FRAME

    def counted(self, body: bytes) -> Counted:
        try:
            usage = _decoder.decode(body).usage
        except UNREADABLE as error:
            raise UnreadableAnswer(str(error)) from error
        details = usage.completion_tokens_details
        return Counted(usage.completion_tokens, details.reasoning_tokens if details else None)

    def whole(self, body: bytes, response_id: str, created: int, usage: Usage) -> bytes:
        return with_fields(body, {"id": response_id, "created": created, "usage": usage.as_json()})

    def error(self, error: ApiError, request_id: str | None) -> bytes:
        return error.encode()

    def error_frames(self, error: ApiError) -> bytes:
        return error_frames(error)


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int
    completion_tokens_details: _Details | None = None


class _Head(msgspec.Struct):
    usage: _Usage


_decoder = msgspec.json.Decoder(_Head)
