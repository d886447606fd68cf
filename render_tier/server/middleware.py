"""Pure ASGI middleware: counting, request IDs and API keys; each adds microseconds to a request."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from render_tier.server.replies import UNAUTHORIZED, refuse_handshake
from render_tier.server.runtime import Runtime

OTHER_ROUTE = "other"
UNCOUNTED = ("/metrics", "/load")
"""Routes that tell how many requests are in progress; those that ask are none of them."""


class RequestMetrics:
    """Counts and times each request under its route; unknown paths share one label."""

    def __init__(self, inner: ASGIApp, runtime: Runtime, routes: Sequence[str]) -> None:
        self._inner = inner
        self._runtime = runtime
        metrics = runtime.metrics
        self._durations = {route: metrics.duration.labels(route) for route in (*routes, OTHER_ROUTE)}
        self._counters: dict[tuple[str, int], Counter] = {}
        metrics.on_refresh.append(lambda: metrics.in_flight.set(runtime.in_flight))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self._durations else OTHER_ROUTE
        status = 499  # the client left before an answer began

        async def counting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        runtime = self._runtime
        counted = route not in UNCOUNTED
        runtime.in_flight += counted
        start = time.perf_counter()
        try:
            await self._inner(scope, receive, counting_send)
        finally:
            runtime.in_flight -= counted
            self._durations[route].observe(time.perf_counter() - start)
            counter = self._counters.get((route, status))
            if counter is None:
                counter = self._counters[route, status] = runtime.metrics.requests.labels(route, str(status))
            counter.inc()


class RequestIdHeader:
    """Answers with ``X-Request-Id``: the client's, else a random one."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        request_id = given or secrets.token_hex(16).encode()

        async def stamping_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            await send(message)

        await self._inner(scope, receive, stamping_send)


class ApiKeys:
    """Bearer keys on the API's prefixes; health, metrics, ``/tokenize`` and ``/detokenize`` stay open."""

    PREFIXES = ("/v1", "/v2", "/inference")

    def __init__(self, inner: ASGIApp, keys: Sequence[str]) -> None:
        self._inner = inner
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = scope["type"] == "websocket"
        if (
            scope["type"] not in ("http", "websocket")
            or (not websocket and scope["method"] == "OPTIONS")
            or not scope["path"].startswith(self.PREFIXES)
        ):
            await self._inner(scope, receive, send)
            return
        if self._known(next((value for name, value in scope["headers"] if name == b"authorization"), b"")):
            await self._inner(scope, receive, send)
            return
        if websocket:
            await refuse_handshake(UNAUTHORIZED, receive, send)
        else:
            await UNAUTHORIZED.send(send)

    def _known(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        # Every key is compared, in constant time each, so that the time taken tells nothing.
        matches = [hmac.compare_digest(token, key) for key in self._keys]
        return any(matches)
