"""The engine's HTTP surface, as a plain ASGI application: vLLM's tokens-only routes and error bodies."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Message, Receive, Scope, Send

from orchestrator.embedded.engine import Engine
from orchestrator.embedded.metrics import exposition, registry
from orchestrator.embedded.nixl_memory import NixlError, NixlMemory
from orchestrator.embedded.requests import EngineLimits, GenerateCall, parse_generate
from orchestrator.embedded.server_info import server_info
from orchestrator.embedded.session import EngineIdentity, Session
from orchestrator.embedded.transfer_protocol import Transfer, compatibility
from orchestrator.embedded.transfer_server import TransferServer, TransferServerSettings
from render_tier.protocol.errors import ApiError, BadRequest, PayloadTooLarge
from render_tier.protocol.validation import SHAPE_ERROR, decode_object

if TYPE_CHECKING:
    from orchestrator.embedded.traces import Traces

log = logging.getLogger(__name__)

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
METRICS: Final = b"text/plain; version=0.0.4; charset=utf-8"
ID_PREFIX: Final = "generate-tokens-"
"""Abort takes ids as answers show them, so the prefix is part of the contract."""

MAX_ABORT_IDS: Final = 10_000


@dataclass(frozen=True)
class SurfaceSettings:
    """``advertised_host``: where decode engines reach the transfer port, if not at the bound address.
    ``transfer_over``: how this engine pulls KV. With "nixl" its own can be read over NIXL too; over a socket
    it can be had in any case."""

    root: str
    transfer: TransferServerSettings = field(default_factory=TransferServerSettings)
    transfer_over: Transfer = "socket"
    advertised_host: str | None = None
    max_body_bytes: int = 16 << 20
    traces_endpoint: str | None = None


class ClientGone(Exception):
    """The client closed the connection before the request was complete."""


class EngineSurface:
    """ASGI application that owns an engine: the lifespan starts and stops it and its transfer server."""

    def __init__(self, engine: Engine, limits: EngineLimits, settings: SurfaceSettings) -> None:
        self.engine = engine
        self.engine_id = secrets.token_hex(16)
        self._limits = limits
        self._settings = settings
        self._created = int(time.time())
        self._version_body = msgspec.json.encode({"version": importlib.metadata.version("disagg-frontend")})
        self._info_body = msgspec.json.encode(server_info(engine, limits, settings.root))
        self._nixl: NixlMemory | None = None
        if settings.transfer_over == "nixl":
            self._nixl = NixlMemory(
                self.engine_id,
                engine.backend.store,
                transfer_seconds=settings.transfer.limits.transfer_seconds,
            )
        self._metrics = registry(engine, limits.served_names[0], self._nixl)
        self._sessions: dict[str, set[Session]] = {}
        self._traces: Traces | None = None
        self._compatibility = compatibility(
            engine.backend.fingerprint,
            engine.backend.store.layout.describe(),
            engine.backend.arithmetic,
            engine.settings.prefill_chunk,
        )
        self.transfer = TransferServer(
            engine,
            settings.transfer,
            engine_id=self.engine_id,
            compatibility=self._compatibility,
            lease_seconds=engine.settings.lease_seconds,
            nixl=self._nixl,
        )
        self._routes: dict[str, dict[str, Callable[[Scope, Receive, Send], Awaitable[None]]]] = {
            "/inference/v1/generate": {"POST": self._generate},
            "/inference/v1/abort_requests": {"POST": self._abort},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/metrics": {"GET": self._expose},
            "/v1/models": {"GET": self._models},
            "/version": {"GET": self._version},
            "/server_info": {"GET": self._server_info},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            # A WebSocket; closed before it is accepted, which is a 403 on the wire.
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def start(self) -> None:
        """Warm up, then open for requests. Raises OSError or NixlError."""
        await asyncio.to_thread(self.engine.backend.warm_up)
        if self._settings.traces_endpoint is not None:
            from orchestrator.embedded.traces import Traces

            self._traces = await asyncio.to_thread(Traces, self._settings.traces_endpoint)
        if self._nixl is not None:
            await self._nixl.open()
        self.engine.start()
        await self.transfer.start()

    async def stop(self) -> None:
        await self.transfer.stop()
        await asyncio.to_thread(self.engine.stop)
        if self._nixl is not None:
            await self._nixl.close()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def abort_all(self) -> None:
        """Every request under way ends as if it had been aborted."""
        for sessions in self._sessions.values():
            for session in sessions:
                session.abort()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except (OSError, NixlError) as error:
            what = "" if isinstance(error, NixlError) else "cannot open the transfer port: "
            await send({"type": "lifespan.startup.failed", "message": f"{what}{error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        methods = self._routes.get(scope["path"])
        if methods is None:
            await _respond(send, 404, b'{"detail":"Not Found"}')
        elif scope["method"] not in methods:
            await _respond(send, 405, b'{"detail":"Method Not Allowed"}')
        else:
            try:
                await methods[scope["method"]](scope, receive, send)
            except ApiError as error:
                await _respond(send, error.status, error.encode())
            except ClientGone:
                pass

    # Routes

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._json_body(scope, receive)
        call = parse_generate(body, self._limits)
        name = _header(scope, b"x-request-id") or call.request_id or secrets.token_hex(8)
        work = asyncio.create_task(self._traced(scope, call, f"{ID_PREFIX}{name}", send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            # Also when this task is cancelled itself: the session must have ended before it does.
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _traced(self, scope: Scope, call: GenerateCall, request_id: str, send: Send) -> None:
        if self._traces is None:
            await self._run(call, request_id, send)
            return
        names = ("traceparent", "tracestate")
        context = {name: value for name in names if (value := _header(scope, name.encode())) is not None}
        with self._traces.request(context, request_id, len(call.prompt), call.settings.max_tokens):
            await self._run(call, request_id, send)

    async def _run(self, call: GenerateCall, request_id: str, send: Send) -> None:
        identity = EngineIdentity(
            self.engine_id,
            self._settings.advertised_host or self._settings.transfer.host,
            self.transfer.port,
            self._compatibility,
        )
        limits = self._settings.transfer.limits
        session = Session(self.engine, identity, limits, call, request_id, self._nixl)
        self._sessions.setdefault(request_id, set()).add(session)
        try:
            async with session:
                if not call.stream:
                    await _respond(send, 200, await session.answer())
                    return
                await _start(send, 200, EVENT_STREAM)
                async for piece in session.stream():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            sessions = self._sessions[request_id]
            sessions.discard(session)
            if not sessions:
                del self._sessions[request_id]

    async def _abort(self, scope: Scope, receive: Receive, send: Send) -> None:
        data = decode_object(await self._json_body(scope, receive))
        if "request_ids" not in data:
            raise BadRequest("Missing 'request_ids' in request body", type=SHAPE_ERROR)
        ids = data["request_ids"]
        if not isinstance(ids, list) or len(ids) > MAX_ABORT_IDS:
            raise BadRequest(f"'request_ids' must be a list of at most {MAX_ABORT_IDS} ids", type=SHAPE_ERROR)
        for request_id in ids:
            for session in self._sessions.get(request_id, ()) if isinstance(request_id, str) else ():
                session.abort()
        await _respond(send, 200, b"")

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _respond(send, 200 if self.engine.alive else 503, b"")

    async def _expose(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _respond(send, 200, exposition(self._metrics), METRICS)

    async def _version(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _respond(send, 200, self._version_body)

    async def _server_info(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _respond(send, 200, self._info_body)

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        cards = [self._card(name) for name in self._limits.served_names]
        await _respond(send, 200, msgspec.json.encode({"object": "list", "data": cards}))

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "embedded",
            "root": self._settings.root,
            "parent": None,
            "max_model_len": self._limits.max_model_len,
            "permission": [],
        }

    async def _json_body(self, scope: Scope, receive: Receive) -> bytes:
        kind = (_header(scope, b"content-type") or "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise BadRequest(
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                type=SHAPE_ERROR,
            )
        body = bytearray()
        while True:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > self._settings.max_body_bytes:
                raise PayloadTooLarge(f"The body exceeds {self._settings.max_body_bytes} bytes.")
            if not message.get("more_body", False):
                return bytes(body)


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, kind: bytes, length: int | None = None) -> None:
    headers = [(b"content-type", kind)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _respond(send: Send, status: int, body: bytes, kind: bytes = JSON) -> None:
    await _start(send, status, kind, len(body))
    await send({"type": "http.response.body", "body": body})
