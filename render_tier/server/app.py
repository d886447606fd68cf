"""The ASGI application: FastAPI for the small routes and the schema, raw ASGI for the hot ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from starlette.types import ASGIApp

from render_tier import __version__
from render_tier.protocol.errors import ApiError, NotFound, Unavailable
from render_tier.server import metrics as metrics_module
from render_tier.server.endpoints import build_endpoints
from render_tier.server.hot_routes import HotRoutes
from render_tier.server.idle_loop import IdleLoop
from render_tier.server.metrics import build_metrics
from render_tier.server.middleware import ApiKeys, RequestIdHeader, RequestMetrics
from render_tier.server.openapi import describe_endpoints
from render_tier.server.runtime import Runtime
from render_tier.server.service import Service
from render_tier.server.sessions import Sessions
from render_tier.server.tokenizer_info import tokenizer_info
from render_tier.server.traced_requests import TracedRequests
from render_tier.settings import Settings


class RenderApp:
    """The composed application; ``runtime`` and ``sessions`` are there for the process that runs it and for
    tests."""

    def __init__(self, asgi: ASGIApp, runtime: Runtime, sessions: Sessions) -> None:
        self.asgi = asgi
        self.runtime = runtime
        self.sessions = sessions

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.asgi(scope, receive, send)


def create_app(
    settings: Settings,
    *,
    preloaded: Service | None = None,
    on_failure: Callable[[Exception], None] = lambda error: None,
    on_loaded: Callable[[], None] = lambda: None,
) -> RenderApp:
    """The application for one process. The model is loaded when its lifespan starts, unless ``preloaded``.

    ``on_failure`` is called on the event loop when the model cannot be loaded, ``on_loaded`` when all that
    lasts is there.
    """
    runtime = Runtime(
        settings, build_metrics(), preloaded=preloaded, on_failure=on_failure, on_loaded=on_loaded
    )
    endpoints = build_endpoints(settings, runtime.metrics)
    api = _small_routes(settings, runtime)
    describe_endpoints(api, list(endpoints.values()))
    sessions = Sessions(api, runtime, settings)
    idle_loop = IdleLoop(runtime, sessions.__len__, settings.inline_render_bytes)
    app: ASGIApp = HotRoutes(sessions, endpoints, runtime, idle_loop, settings)
    if settings.otlp_traces_endpoint is not None:
        app = TracedRequests(app, runtime, endpoints)
    if settings.api_key:
        app = ApiKeys(app, settings.api_key)
    if settings.enable_request_id_headers:
        app = RequestIdHeader(app)
    small_paths = [route.path for route in api.routes if hasattr(route, "path")]
    return RenderApp(RequestMetrics(app, runtime, [*endpoints, *small_paths]), runtime, sessions)


def _small_routes(settings: Settings, runtime: Runtime) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await runtime.start()
        try:
            yield
        finally:
            await runtime.stop()

    shown = not settings.disable_fastapi_docs
    api = FastAPI(
        title="render-tier",
        version=__version__,
        lifespan=lifespan,
        root_path=settings.root_path,
        openapi_url="/openapi.json" if shown else None,
        docs_url="/docs" if shown else None,
        redoc_url="/redoc" if shown else None,
    )

    @api.get("/health", summary="The process is alive")
    async def health() -> Response:
        return Response(status_code=200)

    @api.get("/ping", summary="The process is alive")
    @api.post("/ping", summary="The process is alive", operation_id="ping_post")
    async def ping() -> Response:
        return Response(status_code=200)

    @api.get("/ready", summary="The model is loaded and there is room in the queues")
    async def ready(response: Response) -> dict[str, Any]:
        service = runtime.service
        if service is None:
            response.status_code = 503
            return {"status": "failed" if runtime.failure is not None else "loading"}
        if runtime.saturated or runtime.draining:
            response.status_code = 503
        return {
            "status": "stopping" if runtime.draining else "saturated" if runtime.saturated else "ready",
            "model": service.assets.served_names[0],
            "fingerprint": service.assets.fingerprint,
            "vocab_size": service.assets.vocab_size,
        }

    @api.get("/version", summary="The render tier's version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @api.get("/load", summary="Requests in progress")
    async def load() -> dict[str, int]:
        return {"server_load": runtime.in_flight}

    @api.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(runtime.metrics.exposition(), media_type=metrics_module.CONTENT_TYPE)

    @api.get("/v1/models", summary="The served names")
    async def models(response: Response) -> dict[str, Any]:
        service = runtime.service
        if service is None:
            response.status_code = 503
            return {"object": "list", "data": []}
        return {
            "object": "list",
            "data": [_model_card(service, name) for name in service.assets.served_names],
        }

    @api.get("/v1/models/{name:path}", summary="One served name")
    async def model(name: str, response: Response) -> dict[str, Any]:
        service = runtime.service
        if service is None:
            error: ApiError = Unavailable("The model is not loaded.")
        elif name in service.assets.served_names:
            return _model_card(service, name)
        else:
            error = NotFound(f"The model {name!r} does not exist.", param="model")
        response.status_code = error.status
        return {"error": msgspec.structs.asdict(error.body().error)}

    if settings.enable_tokenizer_info_endpoint:

        @api.get("/tokenizer_info", summary="The tokenizer's configuration")
        async def tokenizer(response: Response) -> dict[str, Any]:
            if runtime.service is not None:
                return tokenizer_info(runtime.service.assets)
            error = Unavailable("The model is not loaded.")
            response.status_code = error.status
            return {"error": msgspec.structs.asdict(error.body().error)}

    return api


def _model_card(service: Service, name: str) -> dict[str, Any]:
    now = int(time.time())
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": now,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": now,
        "owned_by": "render-tier",
        "root": service.assets.name,
        "parent": None,
        "max_model_len": service.assets.max_model_len,
        "permission": [permission],
    }
