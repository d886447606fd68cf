"""The way to the endpoints that generate, past the router and its exception handling: every layer between an
endpoint and its client costs something for each piece of a stream."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class HotRoutes:
    """Middleware, to be the innermost. ``endpoints``: by path, asked with POST."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["method"] == "POST":
            app = self._endpoints.get(scope["path"], app)
        await app(scope, receive, send)
