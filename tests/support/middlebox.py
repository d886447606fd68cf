"""A reverse proxy before an engine, through which a test sees each generation and changes or holds it.

It stands for whatever may be between the orchestrator and an engine, and for what an engine says only in a
moment that cannot be met on purpose. It runs in a thread of its own, so that a test may use it from any code.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from io import BytesIO
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from tests.support.processes import ServerProcess

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
OWN_HEADERS = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}

Change = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
"""Given a generation's request and its JSON answer: the answer that is passed on."""


class Middlebox:
    """Before ``target``, wherever that listens at the moment of a request."""

    def __init__(self, target: ServerProcess) -> None:
        self.target = target
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        """Bodies of generations, in the order of their arrival."""
        self.aborted: list[str] = []
        self.change: Change | None = None
        """Of answers that are not streams."""
        self.waiting = 0
        """Answers that are held."""
        self._gate = threading.Event()
        self._gate.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="middlebox", daemon=True)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    def hold(self) -> None:
        """Keep the beginning of every answer of a generation, until ``release``."""
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def reset(self) -> None:
        self.release()
        self.change = None
        self.requests.clear()
        self.aborted.clear()

    # ---- the server ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _begin(self) -> None:
        # A connection for each request: an engine that was stopped for longer than its keep-alive closes an
        # idle one before it reads what has meanwhile arrived there.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _end(self) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        body = await request.read()
        sent: dict[str, Any] = json.loads(body) if body else {}
        generation = request.path == GENERATE
        if generation:
            self.requests.append(sent)
        elif request.path == ABORT:
            self.aborted += sent["request_ids"]
        headers = {k: v for k, v in request.headers.items() if k.lower() not in OWN_HEADERS}
        url = f"{self.target.url}{request.rel_url}"
        try:
            async with self._session.request(
                request.method, url, data=BytesIO(body) if body else None, headers=headers
            ) as answer:
                if generation:
                    await self._pass_gate()
                if generation and answer.content_type == "application/json":
                    return await self._whole(sent, answer)
                return await self._stream(request, answer)
        except aiohttp.ClientConnectorError:
            # As if nobody listened here either.
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)

    async def _pass_gate(self) -> None:
        self.waiting += 1
        try:
            while not self._gate.is_set():
                await asyncio.sleep(0.01)
        finally:
            self.waiting -= 1

    async def _whole(self, sent: dict[str, Any], answer: aiohttp.ClientResponse) -> web.Response:
        found = await answer.json()
        if self.change is not None and answer.status == 200:
            found = self.change(sent, found)
        return web.json_response(found, status=answer.status)

    @staticmethod
    async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        passed = {k: v for k, v in answer.headers.items() if k.lower() not in OWN_HEADERS}
        response = web.StreamResponse(status=answer.status, headers=passed)
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response
