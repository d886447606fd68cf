"""Hop 4 as a session: the messages of the WebSocket ``/v1/derender/sessions``.

Each message, in either direction, is a JSON array. The client sends `Frame`s, each about one of its streams,
numbered as it likes; several streams and several frames may share a message. Every frame that opens, brings
a chunk or asks for a snapshot is answered by one `Answer`, in order. ``docs/derender.md`` describes the
conversation.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from render_tier.protocol.derender import ABSENT, Count, TokensChoice
from render_tier.protocol.errors import ErrorInfo
from render_tier.protocol.generate import GenerateUsage, RequestMetrics

SESSION_PATH: Final = "/v1/derender/sessions"
MOVING: Final = b'[{"moving":true}]'
"""Sent once when the server is about to stop: open no more streams here, and go on elsewhere."""


class StreamOpen(msgspec.Struct, kw_only=True):
    """``request``: the chat or completions request; it and ``prompt_token_ids`` may be left out where
    ``context`` names them. ``stream_state``: go on from there. ``trace``: W3C trace context, by the names of
    its headers."""

    endpoint: Literal["chat", "completions", "messages", "responses"]
    request_id: str
    model: str | None = None
    created: Count | None = None
    request: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    prompt_tokens: Count | None = None
    context: str | None = None
    stream_state: msgspec.Raw = ABSENT
    trace: dict[str, str] | None = None


class SessionChunk(msgspec.Struct, kw_only=True):
    """A generate chunk (`derender.TokensChunk`) without what the stream knows already."""

    choices: list[TokensChoice]
    usage: GenerateUsage | None = None
    prompt_token_ids: msgspec.Raw = ABSENT
    metrics: RequestMetrics | None = None
    position: Count | None = None


class Frame(msgspec.Struct, kw_only=True):
    """``snapshot``: answer with the state after this frame. ``close``: the stream ends after this frame."""

    stream: Count
    open: StreamOpen | None = None
    chunk: SessionChunk | None = None
    snapshot: bool = False
    close: bool = False


class Notes(msgspec.Struct):
    """`responses.DerenderNotes` as a client reads them."""

    context: str | None = None
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    empty: bool = False
    finished: bool = False


class Answer(msgspec.Struct, kw_only=True):
    """As the client reads it. ``chunk`` is the JSON of one server-sent event; streams of events have
    ``events``, each of them the JSON of one. After an ``error`` the stream
    is closed. ``stream`` is absent from ``moving``."""

    stream: int = -1
    chunk: msgspec.Raw = ABSENT
    events: list[msgspec.Raw] | None = None
    derender: Notes | None = None
    stream_state: msgspec.Raw = ABSENT
    error: ErrorInfo | None = None
    moving: bool = False
