"""What a dialect must be able to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from orchestrator.core.usage import Usage
from render_tier.protocol.errors import ApiError


class UnreadableAnswer(ValueError):
    """Derender's answer is not what its API says."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What derender counted in a whole answer."""

    completion_tokens: int
    reasoning_tokens: int | None


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """What may be said at the end of a stream. ``usage`` is None where the client did not ask; ``extra`` are
    fields of our own that it asked for."""

    response_id: str
    created: int
    model: str | None
    usage: Usage | None
    extra: dict[str, Any]


class Dialect(Protocol):
    @property
    def id_prefix(self) -> str:
        """Of response ids."""

    @property
    def keepalive(self) -> bytes:
        """A frame that says nothing."""

    @property
    def ends_with_usage(self) -> bool:
        """Whether the end of a stream tells usage to clients that did not ask for it."""

    def frames(self, events: Sequence[msgspec.Raw], usage: Usage | None) -> bytes:
        """Derender's events, or its one chunk, for the client. ``usage``: the counts so far, where the client
        is told them all along."""

    def end(self, end: StreamEnd) -> bytes:
        """The last frames of a stream."""

    def counted(self, body: bytes) -> Counted:
        """Of a whole answer of derender. Raises `UnreadableAnswer`."""

    def whole(self, body: bytes, response_id: str, created: int, usage: Usage) -> bytes:
        """The whole answer for the client."""

    def error(self, error: ApiError, request_id: str | None) -> bytes:
        """The body of an answer that is an error."""

    def error_frames(self, error: ApiError) -> bytes:
        """The end of a stream that failed after its headers were sent."""
