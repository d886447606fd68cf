"""The ASGI application: routes, lifespan, and error bodies for everything that is not a completion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator import __version__
from orchestrator.core.access import unknown_model
from orchestrator.hops.errors import HopError
from orchestrator.hops.render import PATHS, model_card, models_for
from orchestrator.hops.transport import Reply
from orchestrator.server.abort_requests import ABORT, AbortEndpoint, abort_here
from orchestrator.server.abort_requests import PATH as ABORT_PATH
from orchestrator.server.admin import admin_routes
from orchestrator.server.asking import access_of, is_operator
from orchestrator.server.attempts import on_render_members
from orchestrator.server.authority import Authority
from orchestrator.server.endpoints import CompletionEndpoint
from orchestrator.server.explaining import REQUEST, told
from orchestrator.server.hot_routes import HotRoutes
from orchestrator.server.key_gate import KeyGate
from orchestrator.server.pass_on import RenderTierEndpoint
from orchestrator.server.services import Services
from orchestrator.server.sibling_metrics import METRICS, Siblings
from orchestrator.server.token_exchange import GenerateEndpoint
from orchestrator.server.tracing import open_tracing
from orchestrator.settings import Settings
from render_tier.protocol.errors import ApiError, NotFound

log = structlog.get_logger(__name__)

RENDER_TIER: Final = (
    RenderTierEndpoint("/v1/messages/count_tokens", "count_tokens", "messages"),
    RenderTierEndpoint("/tokenize", "tokenize", "chat"),
    RenderTierEndpoint("/detokenize", "detokenize", "chat"),
)
"""What the render tier answers alone."""


def create_app(settings: Settings, *, workers_directory: Path | None = None) -> Starlette:
    """One process's application. ``app.state.services`` exists while its lifespan runs. ``workers_directory``
    is where several workers meet, for what they tell and count together. Raises
    ``ConfigError`` for keys that cannot be used."""
    authority = None
    gates: list[Middleware] = []
    if settings.auth.required:
        authority = Authority(settings.auth, settings.admission.retry_after_unmeasured, workers_directory)
        gates = [Middleware(KeyGate, authority, settings.server)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        services = app.state.services = Services(settings, workers_directory)
        await services.start()
        siblings = None
        services.tracing = await open_tracing(settings.tracing)
        if workers_directory is not None:
            seconds = settings.health.timeout
            answers: Mapping[str, Callable[[str], bytes]] = {
                METRICS: services.metrics.told,
                REQUEST: partial(told, services),
                ABORT: partial(abort_here, services),
            }
            siblings = Siblings(workers_directory, answers, seconds)
            await siblings.open()
        app.state.siblings = siblings
        following = None if authority is None else asyncio.create_task(authority.follow(), name="keys")
        log.info(
            "orchestrator started",
            version=__version__,
            config=settings.digest(),
            settings=settings.redacted(),
        )
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
            if siblings is not None:
                await siblings.close()
            await services.close()

    generating = {path: CompletionEndpoint(endpoint) for endpoint, path in PATHS.items()}
    generating[PATHS["generate"]] = GenerateEndpoint()
    app = Starlette(
        routes=[
            # For what is not POST.
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in generating.items()),
            *(Route(endpoint.path, endpoint, methods=["POST"]) for endpoint in RENDER_TIER),
            Route(ABORT_PATH, AbortEndpoint(), methods=["POST"]),
            Route("/v1/responses/{id}", no_response, methods=["GET", "DELETE"]),
            Route("/v1/responses/{id}/cancel", no_response, methods=["POST"]),
            Route("/v1/responses/{id}/input_items", no_response),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
            Route("/version", version),
            *admin_routes(),
        ],
        exception_handlers={HTTPException: http_error, Exception: unexpected_error},
        middleware=[*gates, Middleware(HotRoutes, generating)],
        lifespan=lifespan,
    )
    app.state.settings = settings
    return app


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def models(request: Request) -> Response:
    """The render tier's list, of which a key may see less: it is what decides which names are served."""
    access = access_of(request.scope)
    try:
        body = (await _models(_services(request))).body
        if access is not None:
            body = models_for(body, access.sees)
    except HopError as error:
        return _error_response(error)
    return Response(body, media_type="application/json")


async def model(request: Request) -> Response:
    """One card of the list."""
    name = request.path_params["name"]
    access = access_of(request.scope)
    try:
        reply = await _models(_services(request))
        card = model_card(reply.body, name) if access is None or access.sees(name) else None
    except HopError as error:
        return _error_response(error)
    if card is None:
        return _error_response(unknown_model(name))
    return Response(bytes(card), media_type="application/json")


async def _models(services: Services) -> Reply:
    async def call(url: str) -> Reply:
        return await services.render_client.models(url, services.settings.timeouts.render)

    return await on_render_members(services, "render", services.settings.policy.render_attempts, call)


async def no_response(request: Request) -> Response:
    """Nothing is stored, so there is no response to read, delete or cancel."""
    name = request.path_params["id"]
    return _error_response(
        NotFound(f"There is no response {name[:100]!r}: responses are not stored here.", param="response_id")
    )


async def health(_request: Request) -> Response:
    """Alive; says nothing about the hops."""
    return Response()


async def ready(request: Request) -> Response:
    """Every needed role has a member that may get work, and nobody has asked for a drain. Operators are told
    of which member what is known."""
    services = _services(request)
    missing = services.deployment.missing_roles()
    is_ready = not missing and not services.draining
    body: dict[str, Any] = {"ready": is_ready, "missing": missing, "draining": services.draining}
    if is_operator(request.scope, services.settings.server):
        body["members"] = {
            pool.role: {member.url: bool(member.probed) and member.welcome for member in pool.members}
            for pool in services.pools
            if pool
        }
    return JSONResponse(body, 200 if is_ready else 503)


async def metrics(request: Request) -> Response:
    siblings: Siblings | None = request.app.state.siblings
    exposition = _services(request).metrics.exposition() if siblings is None else await siblings.exposition()
    return Response(exposition, media_type=CONTENT_TYPE_LATEST)


async def version(_request: Request) -> Response:
    return JSONResponse({"version": __version__})


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _error_response(NotFound(f"There is no {request.url.path} here"))
    kind = "MethodNotAllowedError" if error.status_code == 405 else None
    response = _error_response(ApiError(error.detail, status=error.status_code, type=kind))
    response.headers.update(error.headers or {})
    return response


async def unexpected_error(request: Request, error: Exception) -> Response:
    log.error("unexpected error", path=request.url.path, exc_info=error)
    return _error_response(ApiError("internal error"))


def _error_response(error: ApiError) -> Response:
    return Response(error.encode(), error.status, media_type="application/json")
