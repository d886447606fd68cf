"""Routes for operators: ``/status``, ``/admin/drain`` and ``/admin/undrain``, and ``/admin/requests/ID`` for
what was decided for one of them.

With ``server.admin_key`` they ask for it; without one they answer only to this machine. Who else asks is told
that there is nothing here for them, and no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from orchestrator.core.membership import Key
from orchestrator.core.parity import Role
from orchestrator.server.asking import STATUS_PATH, challenge, require_operator
from orchestrator.server.explaining import record_of
from orchestrator.server.services import Services
from orchestrator.server.status import status
from orchestrator.server.status_page import HEADERS, PAGE, wants_page
from render_tier.protocol.errors import ApiError, BadRequest, NotFound
from render_tier.protocol.unreadable import UNREADABLE

MAX_BODY = 64 * 1024


class _Target(msgspec.Struct, forbid_unknown_fields=True):
    member: str | None = None
    """A URL; None: the orchestrator itself."""
    role: Role | None = None
    """Where one URL is a member of two roles; None: of any."""


def admin_routes() -> list[Route]:
    return [
        Route(STATUS_PATH, _guarded(_status)),
        Route("/admin/drain", _guarded(_drain), methods=["POST"]),
        Route("/admin/undrain", _guarded(_undrain), methods=["POST"]),
        Route("/admin/requests/{id:path}", _guarded(_request_record)),
    ]


def _guarded(
    handler: Callable[[Request, Services], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        services: Services = request.app.state.services
        try:
            require_operator(request.scope, services.settings.server)
            return await handler(request, services)
        except ApiError as error:
            headers = {"WWW-Authenticate": challenge(request.scope)} if error.status == 401 else None
            return Response(error.encode(), error.status, headers, media_type="application/json")

    return guarded


async def _status(request: Request, services: Services) -> Response:
    headers = {"Cache-Control": "no-store", "Vary": "Accept", "X-Content-Type-Options": "nosniff"}
    if wants_page(request.headers.get("Accept", "")):
        return HTMLResponse(PAGE, headers=headers | HEADERS)
    return JSONResponse(status(services), headers=headers)


async def _request_record(request: Request, services: Services) -> Response:
    found = await record_of(services, request.app.state.siblings, request.path_params["id"])
    return Response(found, media_type="application/json")


async def _drain(request: Request, services: Services) -> Response:
    return await _set_drained(request, services, drained=True)


async def _undrain(request: Request, services: Services) -> Response:
    return await _set_drained(request, services, drained=False)


async def _set_drained(request: Request, services: Services, *, drained: bool) -> Response:
    """The answer says what is still to be finished; ask again, or look at ``/status``, until it is
    nothing."""
    target = await _target(request)
    if target.member is None:
        await services.drains.server(drained)
        return JSONResponse({"draining": services.draining, "in_flight": services.integrity.in_flight})
    url = target.member.rstrip("/")
    found = [
        (pool.role, member)
        for pool in services.pools
        for member in pool.members
        if member.url == url and target.role in (None, pool.role)
    ]
    if not found:
        raise NotFound(f"{target.member!r} is not a member", param="member")
    keys: list[Key] = [(role, member.url) for role, member in found]
    await services.drains.members(keys, drained)
    return JSONResponse(
        {
            "members": [
                {
                    "role": role,
                    "url": member.url,
                    "state": member.state,
                    "in_flight": member.active,
                    "leases": member.leases,
                }
                for role, member in found
            ]
        }
    )


async def _target(request: Request) -> _Target:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise BadRequest("the body is too large")
    try:
        return msgspec.json.decode(body or b"{}", type=_Target)
    except UNREADABLE as error:
        raise BadRequest(f"the body is not understood: {error}") from error
