"""``POST /inference/v1/abort_requests``: a client ends its own requests for token IDs by the ids of their
answers."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from orchestrator.core.dialects import DIALECTS
from orchestrator.server.asking import access_of, client_headers
from orchestrator.server.endpoints import ClientLeft, read_body, send_error, send_whole
from orchestrator.server.intake import client_id, tenant_of
from orchestrator.server.services import Services
from orchestrator.server.token_exchange import abort
from render_tier.protocol.errors import ApiError, BadRequest

PATH = "/inference/v1/abort_requests"


class _Body(msgspec.Struct):
    request_ids: list[str]


class AbortEndpoint:
    """Answers at once with an empty body. Ids that are not known, or another tenant's, are no error: who asks
    is not told which exist."""

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
        abort(services, tenant, ids)
        await send_whole(send, 200, b"", client_id(headers))


def _ids(body: bytes) -> frozenset[str]:
    """Raises ``BadRequest``."""
    try:
        return frozenset(msgspec.json.decode(body, type=_Body).request_ids)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body must have a list of request_ids: {error}", param="request_ids") from error
