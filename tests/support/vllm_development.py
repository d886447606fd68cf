"""Runs inside a vLLM in its development mode (`--middleware`): the mode's `/server_info` is not there. Its
first answer takes vLLM ten seconds and says nothing that a test of the other routes needs.

It is imported by vLLM's own interpreter, which has nothing of this project.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]


class NoServerInfo:
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope.get("path") != "/server_info":
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
