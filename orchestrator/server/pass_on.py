"""What the render tier answers by itself, one hop and no engine: counts of tokens, text to IDs and back."""

from __future__ import annotations

import asyncio
from typing import Literal

import structlog
from starlette.types import Receive, Scope, Send

from orchestrator.core.deadline import TIMEOUT_HEADER, deadline
from orchestrator.core.dialects import DIALECTS
from orchestrator.hops.transport import Reply
from orchestrator.server.asking import access_of, client_headers
from orchestrator.server.attempts import on_render_members
from orchestrator.server.endpoints import ClientLeft, note_failure, read_body, send_error, send_whole
from orchestrator.server.intake import ClientRequest, client_id, read_request
from orchestrator.server.services import Services
from render_tier.protocol.errors import ApiError, GatewayTimeout

log = structlog.get_logger(__name__)


class RenderTierEndpoint:
    """Takes its turn among the render legs. ``path`` is where it is asked for and asks, ``name`` what it
    is counted by, ``dialect`` whose errors it answers with."""

    def __init__(self, path: str, name: str, dialect: Literal["chat", "messages"]) -> None:
        self._name = name
        self.path = path
        self._dialect: Literal["chat", "messages"] = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        headers = client_headers(scope)
        name = client_id(headers)
        try:
            body = await read_body(receive, headers, services)
            tenant_header = services.settings.admission.tenant_header
            request = read_request(self._dialect, headers, body, tenant_header, access_of(scope))
            reply = await self._asked(services, request)
        except ClientLeft:
            return
        except Exception as error:
            failed = note_failure(services, self._name, name, error)
            await send_error(send, failed, name, dialect=DIALECTS[self._dialect])
            return
        services.metrics.requests.labels(self._name, "ok").inc()
        log.info("request", client_id=name, endpoint=self._name, outcome="ok", error=None)
        await send_whole(send, 200, reply.body, name)

    async def _asked(self, services: Services, request: ClientRequest) -> Reply:
        """Raises ``ApiError``."""
        settings, now = services.settings, asyncio.get_running_loop().time
        end = deadline(now(), request.timeout, settings.timeouts.request)

        async def call(url: str) -> Reply:
            # A client's short wish ends the request and says nothing of the member.
            limit = settings.timeouts.render
            headers = {**request.render_headers, TIMEOUT_HEADER: f"{end.budget(now(), limit):.3f}"}
            return await services.render_client.post(url, self.path, request.body, headers, limit)

        try:
            async with asyncio.timeout_at(end.at), services.admission.place("render", request.who):
                return await on_render_members(services, "render", settings.policy.render_attempts, call)
        except TimeoutError as error:
            raise GatewayTimeout("the request took too long") from error
        except ApiError as error:
            raise (error if request.access is None else request.access.told(error, request.model)) from None
