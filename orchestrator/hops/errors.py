"""What can go wrong on a hop, as one small tree. Each error knows its hop, its HTTP status for the client,
and whether the same leg may be sent again.

An engine's 4xx is the client's own error and keeps its status, type, message and param, unless it is about
something that the client did not send; what its message says of our inside is taken out. Anything else an
engine says is logged by the caller (``detail``) and not relayed: it describes our inside, not the client's
request.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from orchestrator.core.redaction import public_message, public_param, public_type
from render_tier.protocol.errors import (
    STATUS_TYPES,
    ApiError,
    BadGateway,
    BadRequest,
    ErrorInfo,
    GatewayTimeout,
    PayloadTooLarge,
    Unavailable,
    read_error,
)

HopName = Literal["render", "encode", "prefill", "decode", "derender"]


class HopError(ApiError):
    """A hop that did not give what it was asked for.

    ``retry_safe``: sending the leg again, elsewhere or later, may help and can do no harm.
    ``member_fault``: the member is to blame, which its breaker counts.
    ``detail`` is for the log only.
    """

    retry_safe = False
    member_fault = True
    answered = False
    """The member has answered with a status, which says so."""
    answer_lost = False
    """The member may have done what it was asked, and nobody knows."""

    def __init__(
        self,
        hop: HopName,
        message: str,
        *,
        status: int | None = None,
        type: str | None = None,
        param: str | None = None,
        detail: str = "",
        member: str = "",
        retry_safe: bool | None = None,
    ) -> None:
        super().__init__(message, param=param, status=status, type=type)
        if retry_safe is not None:
            self.retry_safe = retry_safe
        self.hop = hop
        self.detail = detail
        self.member = member

    @property
    def client_fault(self) -> bool:
        return isinstance(self, Refused)


class Unreachable(HopError, Unavailable):
    """No connection, or it broke before an answer was complete."""

    retry_safe = True
    answer_lost = True


class Absent(Unreachable):
    """No connection could be made: nobody is there."""

    answer_lost = False


class Overloaded(HopError, Unavailable):
    """The member said 429 or 503."""

    retry_safe = True
    member_fault = False


class Failed(HopError, BadGateway):
    """The member answered 5xx, or reported an error inside its stream."""


class GivenUp(Failed):
    """The engine has ended a request that nobody has aborted: it is being paused, say."""

    retry_safe = True
    member_fault = False


class Garbled(HopError, BadGateway):
    """The member's answer is not what the protocol says."""

    retry_safe = True
    answer_lost = True


class TooLarge(HopError, PayloadTooLarge):
    """Render makes more of the client's request than may come back: images that are large, or many."""

    member_fault = False


class TimedOut(HopError, GatewayTimeout):
    """The hop did not answer in the time it has."""

    answer_lost = True


class Refused(HopError, BadRequest):
    """The member said that the request is wrong (4xx): passed on in kind, never retried."""

    member_fault = False


class Misconfigured(HopError, BadGateway):
    """The member refuses what only we write: it is not the kind of engine that it is configured as, or of
    another version."""


class NotOffered(HopError):
    """The member does not do this, or not now; there is another way."""

    member_fault = False


class NoMembers(HopError, Unavailable):
    """The role has no members, or all of them are dead."""

    member_fault = False


ENGINES = ("encode", "prefill", "decode")

OUR_FAULT = frozenset({401, 403, 405, 407, 408, 411, 415, 426, 431})
"""4xx that speak about how we asked (credentials, method, framing), not about what the client asked for."""


OWN_FIELDS = frozenset(
    {"kv_transfer_params", "ec_transfer_params", "request_id", "output_mode", "output_kind", "stream_options"}
)
"""Of an engine's request: what a client sends under these names never gets there."""

_BEGINS_AS_ERROR: Final = re.compile(rb'\s*\{\s*"error"\s*:')

_BEGINS_WITH_OURS: Final = re.compile(
    r"""[`'"]?(?:kv_transfer_params|ec_transfer_params|do_remote_prefill|do_remote_decode)\b"""
)
"""Of an engine's message, where it names no param. Further on it may repeat what a client has sent."""


def _is_about_ours(hop: HopName, error: ErrorInfo) -> bool:
    """By what only the engine writes: a client that could bring it about would open engines' breakers."""
    if hop not in ENGINES:
        return False
    if error.param is not None:
        # A path from the body's own fields; below them are names of the client's.
        return error.param.removeprefix("body.").partition(".")[0] in OWN_FIELDS
    return _BEGINS_WITH_OURS.match(error.message) is not None


def error_from_answer(
    hop: HopName, member: str, status: int, body: bytes, *, is_cut: bool = False
) -> HopError:
    """The error that a non-200 answer is. ``is_cut``: ``body`` is its beginning."""
    error = _error_of(hop, member, status, body, is_cut)
    error.answered = True
    return error


def _error_of(hop: HopName, member: str, status: int, body: bytes, is_cut: bool) -> HopError:
    detail = body[:2000].decode("utf-8", "replace")
    if status in (429, 503):
        return Overloaded(hop, f"the {hop} tier is overloaded", status=status,
                          type="RateLimitError" if status == 429 else None,
                          detail=detail, member=member)  # fmt: skip
    if 400 <= status < 500 and status not in OUR_FAULT:
        info = read_error(body)
        if info is not None and _is_about_ours(hop, info):
            # Another prefill engine may be what this one is not; another decode would cost another prefill.
            return Misconfigured(hop, f"the {hop} tier is not configured properly",
                                 retry_safe=hop != "decode", detail=detail, member=member)  # fmt: skip
        if info is not None:
            if hop in ENGINES:
                info = _public(info)
            kind = info.type or STATUS_TYPES.get(status, "BadRequestError")
            return Refused(hop, info.message, status=status, type=kind, param=info.param,
                           detail=detail, member=member)  # fmt: skip
        if is_cut and _BEGINS_AS_ERROR.match(body):
            # Clients make it long, with what it repeats of theirs: it must not count against the member.
            return Refused(hop, f"the {hop} tier refuses this request and says more than is read",
                           status=status, type=STATUS_TYPES.get(status, "BadRequestError"),
                           detail=detail, member=member)  # fmt: skip
    # A prompt that ends one engine (500) would end the next one too. A gateway's 502 and 504 are about the
    # way, and what is left of 4xx is about how we asked: another member may be set otherwise.
    safe = status < 500 or status in (502, 504) or hop in ("render", "derender", "decode")
    return Failed(
        hop, f"the {hop} hop failed", retry_safe=safe, detail=f"HTTP {status}: {detail}", member=member
    )


def _public(error: ErrorInfo) -> ErrorInfo:
    return ErrorInfo(
        public_message(error.message), public_type(error.type), public_param(error.param), error.code
    )


def error_from_body(hop: HopName, member: str, error: ErrorInfo) -> HopError:
    """The error of a stream in a session; its code is a status."""
    return error_from_answer(hop, member, error.code, msgspec.json.encode({"error": error}))
