"""OpenAI's Responses: named events that carry a whole response at both ends; the last one ends the stream.

Derender's events lack the text that closing events repeat; it is put in here, where every delta passes
(`render_tier.protocol.response_stream`). The last event is kept back until usage is complete. So there is one
of these for each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from orchestrator.core.assembly import with_fields
from orchestrator.core.dialects.dialect import Counted, StreamEnd, UnreadableAnswer
from orchestrator.core.sse import KEEPALIVE_FRAME, named_frame
from orchestrator.core.usage import Usage
from render_tier.protocol.errors import ApiError
from render_tier.protocol.response_stream import LIFECYCLE_ENDS, ResponseStream
from render_tier.protocol.unreadable import UNREADABLE


class Responses:
    id_prefix = "resp_"
    keepalive = KEEPALIVE_FRAME
    ends_with_usage = True

    def __init__(self) -> None:
        self._stream = ResponseStream()
        self._last: msgspec.Raw | None = None

    def frames(self, events: Sequence[msgspec.Raw], usage: Usage | None) -> bytes:
        frames = []
        for event in events:
            if _event_decoder.decode(event).type in LIFECYCLE_ENDS:
                # The events stand in a buffer that is read into again.
                self._last = msgspec.Raw(bytes(event))
            else:
                frames.append(_framed(*self._stream.add(event)))
        return b"".join(frames)

    def end(self, end: StreamEnd) -> bytes:
        if self._last is None:
            return b""
        more: dict[str, Any] = dict(end.extra)
        if end.usage is not None:
            more["usage"] = _usage(end.usage)
        return _framed(*self._stream.add(self._last, more))

    def counted(self, body: bytes) -> Counted:
        try:
            usage = _response_decoder.decode(body).usage
        except UNREADABLE as error:
            raise UnreadableAnswer(str(error)) from error
        return Counted(usage.output_tokens, usage.output_tokens_details.reasoning_tokens)

    def whole(self, body: bytes, response_id: str, created: int, usage: Usage) -> bytes:
        return with_fields(body, {"id": response_id, "created_at": created, "usage": _usage(usage)})

    def error(self, error: ApiError, request_id: str | None) -> bytes:
        return error.encode()

    def error_frames(self, error: ApiError) -> bytes:
        told = msgspec.structs.asdict(error.body().error)
        return b"".join([_framed(*event) for event in self._stream.failed(told)])


def _framed(name: str, data: bytes) -> bytes:
    return named_frame(name.encode(), data)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class _Event(msgspec.Struct):
    type: str


class _Details(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    output_tokens: int
    output_tokens_details: _Details


class _Response(msgspec.Struct):
    usage: _Usage


_event_decoder = msgspec.json.Decoder(_Event)
_response_decoder = msgspec.json.Decoder(_Response)
