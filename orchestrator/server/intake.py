"""What is checked and read of a client's request before anything else sees it.

Cheap on purpose: the body stays bytes and is sent to render as it is; render validates it. Here it must only
be a JSON object of bounded size, and a few fields are looked at that render's reply does not carry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orchestrator.core.access import OUTPUT_LIMITS, Access
from orchestrator.core.deadline import requested_timeout
from orchestrator.hops.render import Endpoint
from orchestrator.server.admission import Who
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.unreadable import UNREADABLE

FORWARDED_HEADERS: Final = (
    "traceparent", "tracestate", "baggage", "x-session-id", "x-vllm-priority", "x-data-parallel-rank",
)  # fmt: skip
"""Go to every hop: they steer or trace, and identify nobody."""

MEDIA_SCOPE_HEADER: Final = "x-media-scope"

RECORDED: Final = frozenset({"chat", "completions"})
"""Endpoints whose answers can have a record of their tokens."""

MAX_CONVERSATION_ID: Final = 256
"""Characters."""

_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,256}")

_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
"""As an escape in JSON: a client has cut a text between the two halves of a character."""

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Continues:
    """How a chat names the turn that it goes on from."""

    conversation_id: str | None
    carried: bool
    """Its token IDs are in the request."""
    strict: bool
    """Another prompt is not wanted."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    endpoint: Endpoint
    body: bytes
    model: str | None
    return_token_ids: bool
    wants_record: bool
    """``return_token_ids`` of an API that has a place for it, and nothing of the output is to be hidden."""
    continues: Continues | None
    """None where the client names no turn."""
    timeout: float | None
    """Seconds, as the client asked."""
    wants_timing: bool
    wants_decisions: bool
    sees_members: bool
    """May be told the addresses of those that served the request."""
    session: str | None
    """Ties a client's requests together, for session affinity."""
    who: Who
    client_id: str | None
    """The client's own ``X-Request-Id``: for tracing only, never an id inside."""
    forwarded: Mapping[str, str]
    access: Access | None
    """By the client's key; None where there are none."""

    @property
    def render_headers(self) -> dict[str, str]:
        """Those for the render tier, which keeps images under names that their senders give them and is told
        whose names they are."""
        tenant = self.who.tenant.encode("utf-8", "surrogatepass")
        return {**self.forwarded, MEDIA_SCOPE_HEADER: hashlib.sha256(tenant).hexdigest()}


def read_request(
    endpoint: Endpoint,
    headers: Mapping[str, str],
    body: bytes,
    tenant_header: str | None = None,
    access: Access | None = None,
    *,
    sees_members: bool = False,
) -> ClientRequest:
    """Raises ``ApiError``. ``headers`` has lower-case names."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise _malformed("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        fields = _object_decoder.decode(body)
    except UNREADABLE as error:
        # What the parser says of half a character varies, and may be that the body is cut off.
        why = "a lone surrogate is not valid text" if _LONE_SURROGATE.search(body) else error
        raise _malformed(f"The body is not a JSON object: {why}") from error
    if endpoint == "completions" and _truthy(_value(fields, "echo")):
        raise BadRequest(
            "echo is not supported: the engines behind this endpoint answer with the tokens they sample, not"
            " with the prompt's",
            param="echo",
        )
    if endpoint == "responses":
        _check_stateless(fields)
    timeout = requested_timeout(headers.get("x-request-timeout"), _value(fields, "timeout"))
    model = _value(fields, "model")
    returns_ids = _value(fields, "return_token_ids") is True
    session = headers.get("x-session-id") or None
    forwarded = {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
    if access is not None:
        access.check({name: _value(fields, name) for name in ("model", *OUTPUT_LIMITS) if name in fields})
        session, forwarded = access.session(session), access.forwarded(forwarded)
    return ClientRequest(
        endpoint=endpoint,
        body=body,
        # Anything else than a string is render's to refuse.
        model=model if isinstance(model, str) and model else None,
        return_token_ids=returns_ids,
        wants_record=returns_ids and endpoint in RECORDED and _shows_reasoning(fields),
        continues=_continues(fields) if endpoint == "chat" else None,
        timeout=timeout,
        wants_timing=headers.get("x-pd-timing") == "1",
        wants_decisions=sees_members and headers.get("x-pd-explain") == "1",
        sees_members=sees_members,
        session=session,
        who=Who(tenant_of(headers, tenant_header, access), _priority(headers, _value(fields, "priority"))),
        client_id=client_id(headers),
        forwarded=forwarded,
        access=access,
    )


def _continues(fields: Mapping[str, msgspec.Raw]) -> Continues | None:
    """Raises ``BadRequest``."""
    name = _value(fields, "conversation_id")
    carried = _value(fields, "continuation") is not None
    if name is None and not carried:
        return None
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= MAX_CONVERSATION_ID):
        allowed = f"a string of 1 to {MAX_CONVERSATION_ID} characters"
        raise BadRequest(f"conversation_id must be {allowed}", param="conversation_id")
    return Continues(name, carried, _truthy(_value(fields, "continuation_strict")))


def _shows_reasoning(fields: Mapping[str, msgspec.Raw]) -> bool:
    return "include_reasoning" not in fields or _truthy(_value(fields, "include_reasoning"))


def _check_stateless(fields: Mapping[str, msgspec.Raw]) -> None:
    """``store`` is accepted, being true by default, and nothing is stored; what cannot be had without is
    refused. Raises ``BadRequest``."""
    if _truthy(_value(fields, "background")):
        raise _needs_store("background", "A response is made while its client waits for it.")
    for name in ("previous_response_id", "conversation"):
        if _value(fields, name) is not None:
            raise _needs_store(name, "Send the whole conversation in `input`.")


def _needs_store(name: str, instead: str) -> BadRequest:
    return BadRequest(
        f"{name} is not supported: responses are not stored here. {instead}",
        param=name,
        type="invalid_request_error",
    )


def client_id(headers: Mapping[str, str]) -> str | None:
    """The client's request id, when it can be echoed safely."""
    return public_id(headers.get("x-request-id"))


def public_id(wish: str | None) -> str | None:
    """An id of a client's choice, when it can be echoed safely."""
    return wish if wish is not None and _CLIENT_ID.fullmatch(wish) else None


def tenant_of(headers: Mapping[str, str], tenant_header: str | None, access: Access | None) -> str:
    """Without keys to check, a credential still tells clients apart; it is not kept as it is."""
    if access is not None:
        return access.grant.tenant
    name = headers.get(tenant_header.lower(), "") if tenant_header is not None else ""
    credential = headers.get("authorization", "") or headers.get("x-api-key", "")
    return name or (hashlib.sha256(credential.encode()).hexdigest() if credential else "")


def _priority(headers: Mapping[str, str], in_body: Any) -> int:
    """As engines read it: the header wins, the lower number goes first. What is not a whole number is for
    render or the engine to refuse."""
    header = headers.get("x-vllm-priority", "")
    if _WHOLE_NUMBER.fullmatch(header):
        return int(header)
    return in_body if isinstance(in_body, int) and not isinstance(in_body, bool) else 0


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    """What a field holds; that it is JSON says nothing of its numbers. Raises ``BadRequest``."""
    try:
        return msgspec.json.decode(fields[name]) if name in fields else None
    except UNREADABLE as error:
        raise BadRequest(f"{name}: {error}", param=name) from error


def _truthy(value: Any) -> bool:
    """As render reads a boolean; what is none is render's to refuse."""
    if isinstance(value, str):
        return value.lower() in ("1", "true", "t", "yes", "y", "on")
    return isinstance(value, bool | int | float) and value == 1


def _malformed(message: str) -> BadRequest:
    return BadRequest(message, type="Bad Request")
