"""What every request passes when there are keys: the key first, before its body is read.

Nothing is open but what is named here, so a route that is added later needs a key too.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.core.access import Access
from orchestrator.core.dialects import DIALECTS
from orchestrator.server.asking import challenge, note_access, require_operator
from orchestrator.server.authority import Authority, TooMany
from orchestrator.server.endpoints import send_error
from orchestrator.server.intake import client_id
from orchestrator.settings import Server
from render_tier.protocol.errors import ApiError

log = structlog.get_logger(__name__)

OPEN: Final = frozenset({"/health", "/ready"})
"""What a load balancer asks; neither names a member to anybody but an operator."""

FOR_OPERATORS: Final = ("/metrics", "/status", "/admin")


class KeyGate:
    def __init__(self, app: ASGIApp, authority: Authority, server: Server) -> None:
        self._app = app
        self._authority = authority
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        access: Access | None = None
        account = None
        try:
            if _is_for_operators(scope["path"]):
                require_operator(scope, self._server)
            else:
                access = self._authority.access(scope["headers"])
                account = self._authority.begin(access.grant, asyncio.get_running_loop().time())
                note_access(scope, access)
        except ApiError as error:
            await self._refuse(scope, send, access, error)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if account is not None:
                account.end()

    async def _refuse(self, scope: Scope, send: Send, access: Access | None, error: ApiError) -> None:
        cause = error.cause if isinstance(error, TooMany) else "invalid_key"
        scope["app"].state.services.metrics.key_refusals.labels(cause).inc()
        path, headers = scope["path"], dict(scope["headers"])
        name = client_id({"x-request-id": headers.get(b"x-request-id", b"").decode("latin-1")})
        key = None if access is None else access.grant.name
        log.info("request refused", path=path[:200], client_id=name, key=key, cause=cause)
        more = []
        if error.status == 401:
            more = [(b"www-authenticate", challenge(scope).encode()), (b"connection", b"close")]
        dialect = DIALECTS["messages" if path.startswith("/v1/messages") else "chat"]
        await send_error(send, error, name, more, dialect=dialect)


def _is_for_operators(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in FOR_OPERATORS)
