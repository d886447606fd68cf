"""``POST /inference/v1/abort_requests``: a client ends its own requests for token IDs by the ids of their
answers, whichever worker has them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from orchestrator.core.dialects import DIALECTS
from orchestrator.server.asking import access_of, client_headers
from orchestrator.server.endpoints import ClientLeft, read_body, send_error, send_whole
from orchestrator.server.intake import client_id, tenant_of
from orchestrator.server.services import Services
from orchestrator.server.sibling_metrics import QUESTION_BYTES, Siblings
from orchestrator.server.token_exchange import abort
from render_tier.protocol.errors import ApiError, BadRequest
from render_tier.protocol.unreadable import UNREADABLE

PATH = "/inference/v1/abort_requests"

ABORT: Final = "abort"
"""What workers ask each other for."""

ID_BYTES: Final = 1024
"""No answer has a longer id, also when it is written in JSON."""


class _Body(msgspec.Struct):
    request_ids: list[str]


class _Question(msgspec.Struct):
    tenant: str
    """A digest of the name, whose length its owner may choose."""
    ids: list[str]


class AbortEndpoint:
    """Answers with an empty body when every worker has been told. Ids that are not known, or another
    tenant's, are no error: who asks is not told which exist."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        headers = client_headers(scope)
        try:
            ids = _ids(await read_body(receive, headers, services))
        except ClientLeft:
            return
        except ApiError as error:
            await send_error(send, error, client_id(headers), dialect=DIALECTS["generate"])
            return
        tenant = tenant_of(headers, services.settings.admission.tenant_header, access_of(scope))
        await _abort_everywhere(services, scope["app"].state.siblings, tenant, ids)
        await send_whole(send, 200, b"", client_id(headers))


def abort_here(services: Services, question: str) -> bytes:
    """What a worker does that is asked to. There is nothing to tell."""
    asked = msgspec.json.decode(question, type=_Question)
    abort(services, lambda tenant: _digest(tenant) == asked.tenant, frozenset(asked.ids))
    return b""


async def _abort_everywhere(
    services: Services, siblings: Siblings | None, tenant: str, ids: Collection[str]
) -> None:
    if siblings is None:
        abort(services, lambda theirs: theirs == tenant, ids)
        return
    for some in _parts(ids):
        question = msgspec.json.encode(_Question(_digest(tenant), some))
        await siblings.ask_all(ABORT, question.decode())


def _parts(ids: Collection[str]) -> Iterator[list[str]]:
    """As many at a time as a question has room for."""
    some: list[str] = []
    room = most = QUESTION_BYTES - ID_BYTES
    for each in ids:
        size = len(msgspec.json.encode(each)) + 1
        if size > ID_BYTES:
            continue
        if size > room:
            yield some
            some, room = [], most
        some.append(each)
        room -= size
    if some:
        yield some


def _digest(tenant: str) -> str:
    return hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()


def _ids(body: bytes) -> frozenset[str]:
    """Raises ``BadRequest``."""
    try:
        return frozenset(msgspec.json.decode(body, type=_Body).request_ids)
    except UNREADABLE as error:
        raise BadRequest(f"the body must have a list of request_ids: {error}", param="request_ids") from error
