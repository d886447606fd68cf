"""ASGI middleware that records requests as spans of their callers' traces."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from render_tier.server.runtime import Runtime

TRACE_HEADERS: Final = (b"traceparent", b"tracestate")


class TracedRequests:
    """ASGI: records the requests of ``routes``."""

    def __init__(self, inner: ASGIApp, runtime: Runtime, routes: Collection[str]) -> None:
        self._inner = inner
        self._runtime = runtime
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._routes:
            await self._inner(scope, receive, send)
            return
        headers = scope["headers"]
        trace = {name.decode(): value.decode("latin-1") for name, value in headers if name in TRACE_HEADERS}
        end = self._runtime.tracing.request(scope["path"], trace)
        status = 499  # the client left before an answer began

        async def watching_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._inner(scope, receive, watching_send)
        finally:
            end(status)
