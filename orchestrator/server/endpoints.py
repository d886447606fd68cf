"""The endpoints that generate, as plain ASGI applications: body in, one exchange, answer out.

Status and headers are sent with the first bytes of the answer. For a stream that is the first visible chunk,
so that everything which fails before it has a proper HTTP status.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

import structlog
from starlette.types import Message, Receive, Scope, Send

from orchestrator.core.dialects import DIALECTS, Dialect
from orchestrator.core.warnings import warnings_header
from orchestrator.hops.render import Endpoint
from orchestrator.server.asking import access_of, client_headers, sees_members
from orchestrator.server.direct_send import DirectSend
from orchestrator.server.exchange import Exchange
from orchestrator.server.intake import ClientRequest, client_id, read_request
from orchestrator.server.outcomes import outcome_of
from orchestrator.server.services import Services
from render_tier.protocol.errors import ApiError, PayloadTooLarge

log = structlog.get_logger(__name__)

JSON = b"application/json"
ID_HEADERS = (b"x-request-id", b"request-id")
"""Where the clients of OpenAI and of Anthropic look for a request's id."""
EVENT_STREAM = b"text/event-stream; charset=utf-8"


def note_failure(services: Services, endpoint: str, client: str | None, error: Exception) -> ApiError:
    """Count and log a request that failed while it was no exchange; what its client is to be told. ``client``
    is the id that it chose."""
    failed = error if isinstance(error, ApiError) else ApiError("internal error")
    outcome = outcome_of(failed.status)
    services.metrics.requests.labels(endpoint, outcome).inc()
    line = log.bind(client_id=client, endpoint=endpoint, outcome=outcome)
    if failed is error:
        line.info("request", error={"status": failed.status, "message": failed.message})
    else:
        line.error("unexpected error", exc_info=error)
    return failed


class ClientLeft(Exception):
    """The client disconnected before its body was complete."""


class CompletionEndpoint:
    """``services`` is set by the application's lifespan, before the first request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint: Endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["app"].state.services
        headers = client_headers(scope)
        try:
            services.require_open()
            body = await read_body(receive, headers, services)
            tenant_header = services.settings.admission.tenant_header
            request = read_request(
                self._endpoint,
                headers,
                body,
                tenant_header,
                access_of(scope),
                sees_members=sees_members(scope, headers, services.settings.server),
            )
            exchange = self._exchange(services, request)
        except ClientLeft:
            return
        except Exception as error:
            failed = note_failure(services, self._endpoint, client_id(headers), error)
            await send_error(send, failed, client_id(headers), dialect=DIALECTS[self._endpoint])
            return
        response_id = request.client_id or exchange.base_id
        exchange.start()
        seconds = services.settings.server.sse_keepalive
        keepalive = None if seconds is None else KeepAlive(exchange, seconds)
        watcher = asyncio.get_running_loop().create_task(_watch(receive, exchange), name="watch client")
        try:
            await _answer(exchange, response_id, send)
        finally:
            if keepalive is not None:
                keepalive.stop()
            watcher.cancel()
            exchange.client_gone()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    def _exchange(self, services: Services, request: ClientRequest) -> Exchange:
        """Raises ``ApiError``."""
        return Exchange(services, request)


async def _answer(exchange: Exchange, response_id: str, send: Send) -> None:
    outbox = exchange.outbox
    first = await outbox.next()
    explanation = exchange.explanation()
    explained = [] if explanation is None else [(b"x-pd-decisions", explanation)]
    if exchange.continuation_header is not None:
        explained.append((b"x-pd-continuation", exchange.continuation_header))
    if exchange.warnings:
        explained.append((b"x-pd-warnings", warnings_header(exchange.warnings)))
    if first is None:
        # An error, or nobody is there any more.
        if outbox.error is not None:
            await send_error(send, outbox.error, response_id, explained, dialect=exchange.answer.dialect)
        return
    if not exchange.streaming:
        await send_whole(send, 200, first, response_id, explained)
        return
    await send(_start(200, [(b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache"),
                            (b"x-accel-buffering", b"no"), *explained], response_id))  # fmt: skip
    frames: bytes | None = first
    outbox.direct = DirectSend(send)
    while frames is not None:
        await send({"type": "http.response.body", "body": frames, "more_body": True})
        frames = await outbox.next()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class KeepAlive:
    """A comment for the client when its stream has been silent for ``seconds``. Nothing while it is not known
    whether the request is valid and its answer a stream."""

    def __init__(self, exchange: Exchange, seconds: float) -> None:
        self._exchange = exchange
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        outbox = self._exchange.outbox
        left = outbox.taken_at + self._seconds - self._loop.time()
        if left <= 0:
            left = self._seconds
            if self._exchange.streaming and outbox.empty:
                outbox.put(self._exchange.answer.dialect.keepalive)
        self._timer = self._loop.call_later(left, self._look)


async def _watch(receive: Receive, exchange: Exchange) -> None:
    """Notice that the client has gone also while nothing is being sent."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            exchange.client_gone()
            return


async def read_body(receive: Receive, headers: Mapping[str, str], services: Services) -> bytes:
    """Raises ``ApiError`` for a body that is compressed, too large or too slow, ``ClientLeft`` for one that
    ends early."""
    coding = headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        raise ApiError(
            f"Content-Encoding {coding[:40]!r} is not supported: bodies are read as they are",
            status=415,
            type="Unsupported Media Type",
        )
    limit = services.settings.limits.body_bytes
    too_large = PayloadTooLarge(f"the body exceeds {limit} bytes")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(services.settings.timeouts.body):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise too_large
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as error:
        raise ApiError("the body did not arrive in time", status=408, type="RequestTimeoutError") from error


def _start(status: int, headers: list[tuple[bytes, bytes]], response_id: str | None) -> Message:
    if response_id is not None:
        headers += [(name, response_id.encode("latin-1")) for name in ID_HEADERS]
    return {"type": "http.response.start", "status": status, "headers": headers}


async def send_whole(
    send: Send, status: int, body: bytes, response_id: str | None, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    headers = [(b"content-type", JSON), (b"content-length", str(len(body)).encode()), *more]
    await send(_start(status, headers, response_id))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(
    send: Send,
    error: ApiError,
    response_id: str | None,
    more: Iterable[tuple[bytes, bytes]] = (),
    *,
    dialect: Dialect,
) -> None:
    if error.retry_after is not None:
        more = [*more, (b"retry-after", str(error.retry_after).encode())]
    await send_whole(send, error.status, dialect.error(error, response_id), response_id, more)
