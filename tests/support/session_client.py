"""A client of derender's WebSocket sessions, and a render tier behind a real socket in the test's loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn

from render_tier.protocol.session import SESSION_PATH
from render_tier.server.app import RenderApp, create_app
from render_tier.server.processes import DrainingServer
from render_tier.server.service import Service
from render_tier.settings import Settings


class Connection:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.closing: str | None = None
        """The reason that the server gives when it closes."""

    async def say(self, *frames: dict[str, Any]) -> None:
        await self.socket.send_str(json.dumps(frames))

    async def hear(self) -> list[Any]:
        message = await self.socket.receive(timeout=30)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        answers: list[Any] = json.loads(message.data)
        return answers

    async def ask(self, *frames: dict[str, Any]) -> list[Any]:
        await self.say(*frames)
        return await self.hear()

    async def ended(self) -> int | None:
        """The code with which the server closes."""
        message = await self.socket.receive(timeout=30)
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message
        self.closing = message.extra
        return self.socket.close_code


class Tier:
    def __init__(self, url: str, app: RenderApp, http: aiohttp.ClientSession, server: uvicorn.Server) -> None:
        self.url = url
        self.app = app
        self.http = http
        self.server = server

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Connection]:
        async with self.http.ws_connect(self.url + SESSION_PATH, **options) as socket:
            yield Connection(socket)


@asynccontextmanager
async def served(settings: Settings, service: Service) -> AsyncIterator[Tier]:
    """Until the context is left; then the server is told to stop, and nothing may be left open."""
    app = create_app(settings, preloaded=service)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        loop="none",
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,
        log_config=None,
        timeout_graceful_shutdown=5,
    )
    server = DrainingServer(config, app)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), serving.result()
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as http:
        yield Tier(f"http://127.0.0.1:{port}", app, http, server)
    server.should_exit = True
    await serving
    assert (len(app.sessions), app.sessions.budget.streams, app.sessions.budget.bytes) == (0, 0, 0)
