"""Anthropic's Messages: named events, of which the last ends the stream, and errors of their own shape.

``message_start`` and ``message_delta`` carry usage, which derender knows but for what engines found in their
caches. ``message_delta`` and the end behind it are kept back until that is complete, so there is one of these
for each request. Errors keep their HTTP status, which is what the ``anthropic`` client chooses its exception
by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from orchestrator.core.assembly import with_fields
from orchestrator.core.dialects.dialect import Counted, StreamEnd, UnreadableAnswer
from orchestrator.core.sse import named_frame
from orchestrator.core.usage import Usage
from render_tier.protocol.errors import ApiError
from render_tier.protocol.unreadable import UNREADABLE

PING: Final = named_frame(b"ping", b'{"type":"ping"}')
STOP: Final = named_frame(b"message_stop", b'{"type":"message_stop"}')
ERROR_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status; other 4xx are ``invalid_request_error``, other 5xx ``api_error``."""


class Anthropic:
    id_prefix = "msg_"
    keepalive = PING
    ends_with_usage = True

    def __init__(self) -> None:
        self._last: bytes | None = None

    def frames(self, events: Sequence[msgspec.Raw], usage: Usage | None) -> bytes:
        frames = []
        for event in events:
            head = _event_decoder.decode(event)
            if head.type == "message_delta":
                self._last = bytes(event)
            elif head.type == "message_start":
                frames.append(_started(head, bytes(event), usage))
            elif head.type != "message_stop":
                frames.append(named_frame(head.type.encode(), bytes(event)))
        return b"".join(frames)

    def end(self, end: StreamEnd) -> bytes:
        if self._last is None:
            return b""
        more: dict[str, Any] = dict(end.extra)
        if end.usage is not None:
            more["usage"] = _usage(end.usage)
        return named_frame(b"message_delta", with_fields(self._last, more)) + STOP

    def counted(self, body: bytes) -> Counted:
        try:
            usage = _message_decoder.decode(body).usage
        except UNREADABLE as error:
            raise UnreadableAnswer(str(error)) from error
        details = usage.output_tokens_details
        return Counted(usage.output_tokens, details.thinking_tokens if details else None)

    def whole(self, body: bytes, response_id: str, created: int, usage: Usage) -> bytes:
        return with_fields(body, {"id": response_id, "usage": _usage(usage)})

    def error(self, error: ApiError, request_id: str | None) -> bytes:
        return msgspec.json.encode(_error(error) | {"request_id": request_id})

    def error_frames(self, error: ApiError) -> bytes:
        return named_frame(b"error", msgspec.json.encode(_error(error)))


def _started(head: _Event, event: bytes, usage: Usage | None) -> bytes:
    if usage is not None:
        message = with_fields(head.message, {"usage": _usage(usage)})
        event = with_fields(event, {"message": msgspec.Raw(message)})
    return named_frame(b"message_start", event)


def _usage(usage: Usage) -> dict[str, Any]:
    """``input_tokens`` are those that were not read from a cache."""
    cached = usage.cached_tokens
    counts: dict[str, Any] = {"input_tokens": max(usage.prompt_tokens - (cached or 0), 0)}
    if cached is not None:
        counts["cache_read_input_tokens"] = cached
    counts["output_tokens"] = usage.completion_tokens
    if usage.reasoning_tokens is not None:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return counts


def _error(error: ApiError) -> dict[str, Any]:
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {"type": ERROR_TYPES.get(error.status, other), "message": error.message},
    }


class _Event(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"{}")


class _Details(msgspec.Struct):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct):
    output_tokens: int
    output_tokens_details: _Details | None = None


class _Message(msgspec.Struct):
    usage: _Usage


_event_decoder = msgspec.json.Decoder(_Event)
_message_decoder = msgspec.json.Decoder(_Message)
