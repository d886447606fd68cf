"""What is read of the hops' answers. Fields that are only passed on stay undecoded (``msgspec.Raw``)."""

from __future__ import annotations

from typing import Any

import msgspec

from orchestrator.core.coalescing import WeightVersionSpan
from render_tier.protocol.session import Notes

Raw = msgspec.Raw


class TokensDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class EngineUsage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: TokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class EngineLogprobs(msgspec.Struct):
    content: list[Raw] | None = None


class EngineChoice(msgspec.Struct, gc=False):
    index: int = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: EngineLogprobs | None = None
    weight_versions: list[WeightVersionSpan] | None = None


class EngineAnswer(msgspec.Struct):
    """A generate reply or one chunk of its stream. ``error`` marks a stream that failed inside.

    A ``Raw`` field is empty when absent (msgspec cannot hold a raw value or None); see ``present``.
    """

    request_id: str = ""
    model: str | None = None
    choices: list[EngineChoice] = []
    usage: EngineUsage | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    prompt_logprobs: Raw = Raw()
    error: Raw = Raw()


def present(raw: Raw) -> Raw | None:
    """The field's JSON, or None when it is absent or null."""
    return None if bytes(raw) in (b"", b"null") else raw


class DerenderStreamAnswer(msgspec.Struct):
    """``derender`` is absent from a derender tier that does not know the extension."""

    chunk: Raw = Raw()
    events: list[Raw] | None = None
    stream_state: Raw = Raw()
    derender: Notes | None = None


class ChunkChoice(msgspec.Struct, gc=False):
    finish_reason: str | None = None


class ChunkFinish(msgspec.Struct):
    """The parts of an output chunk that say whether the choice is over, and the public name of the model."""

    model: str | None = None
    choices: list[ChunkChoice] = []


class Logprobs(msgspec.Struct, gc=False):
    content: list[Raw]


class SessionChoice(msgspec.Struct, omit_defaults=True, gc=False):
    index: int = 0
    token_ids: list[int] = []
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None


class SessionChunk(msgspec.Struct, omit_defaults=True, gc=False):
    """``prompt_token_ids`` with the first chunk of a client that wants them back."""

    choices: list[SessionChoice]
    position: int
    prompt_token_ids: Raw | msgspec.UnsetType = msgspec.UNSET


class SessionFrame(msgspec.Struct, omit_defaults=True, gc=False):
    """What we write of ``render_tier.protocol.session.Frame``."""

    stream: int
    open: dict[str, Any] | None = None
    chunk: SessionChunk | None = None
    close: bool = False
