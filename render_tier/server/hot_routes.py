"""Pure ASGI dispatch of the POST endpoints, in front of the FastAPI app that answers everything else.

Bodies are read raw, within a size and a time; nothing of a request is parsed before its endpoint does it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from render_tier.protocol.errors import ApiError, BadRequest, PayloadTooLarge
from render_tier.server.compression import Coding, ReplyCompression, decompress, encoding_of
from render_tier.server.departures import ClientGone, while_connected
from render_tier.server.endpoints import Endpoint, NeedsImages, NeedsSizes, Outcome, PoolName
from render_tier.server.idle_loop import IdleLoop
from render_tier.server.pools import Overloaded
from render_tier.server.replies import METHOD_NOT_ALLOWED, Reply, error_reply
from render_tier.server.runtime import Runtime
from render_tier.settings import Settings

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.vision import PromptImage
    from render_tier.server.image_intake import ImageIntake

log = structlog.get_logger()
CHUNK = b'"generate_chunk"'
MEDIA_SCOPE_HEADER = b"x-media-scope"
"""Whose names of images a request's are."""
KNOWN_HEADER = b"x-known-items"
"""Of what images the caller has the data."""
CLOSE = (b"connection", b"close")
"""For replies sent before the body was read: the rest of it must not be taken for the next request."""


@dataclass(frozen=True)
class FromKept:
    """A reply that is made, of images that are kept."""

    reply: Reply
    images: list[PromptImage]


class HotRoutes:
    def __init__(
        self,
        inner: ASGIApp,
        endpoints: Mapping[str, Endpoint],
        runtime: Runtime,
        idle_loop: IdleLoop,
        settings: Settings,
    ) -> None:
        self._inner = inner
        self._idle_loop = idle_loop
        self._endpoints = endpoints
        self._runtime = runtime
        self._settings = settings
        self._compression = ReplyCompression(settings.compression_min_bytes, settings.compression_level)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None:
            await self._inner(scope, receive, send)
            return
        if scope["method"] != "POST":
            await METHOD_NOT_ALLOWED.send(send)
            return
        headers = dict(scope["headers"])
        try:
            reply = await self._answer(endpoint, scope, headers, receive)
        except ClientGone:
            return
        await reply.send(send)

    async def _answer(
        self, endpoint: Endpoint, scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> Reply:
        read_all = False
        try:
            _check_content_type(headers)
            coding = encoding_of(headers)
            reply_coding = self._compression.coding_for(headers)
            handle = endpoint.handler(scope.get("query_string", b""), headers)
            self._admit()
            body = await self._read_body(headers, receive)
            read_all = True
            service = self._runtime.service
            if service is None:
                raise Overloaded("the model is loading", retry_after=1)
            request_id = _request_id(headers)
            known = _known(headers)

            def work() -> Outcome | FromKept:
                plain = body if coding is None else decompress(body, coding, self._settings.max_body_bytes)
                outcome = handle(service, plain, request_id)
                # A reply that is packed has a copy of what is kept: memory is taken for that first.
                if isinstance(outcome, NeedsImages) and reply_coding is None:
                    if kept := self._images.kept(outcome.images):
                        kept = [replace(image, known=known) for image in kept]
                        return FromKept(outcome.finish(kept), kept)
                    return outcome
                return self._packed(outcome, reply_coding) if isinstance(outcome, Reply) else outcome

            if endpoint.pool == "derender":
                self._idle_loop.streamed()
            bounded = coding is None and handle is endpoint.handle and endpoint.bounded
            if bounded and self._is_inline(endpoint, body):
                outcome = work()
            else:
                outcome = await self._runtime.pools[endpoint.pool].run(work)
            if not isinstance(outcome, Reply):
                async with while_connected(receive):
                    return await self._with_media(outcome, endpoint.pool, reply_coding, headers, known)
            return outcome
        except ApiError as error:
            return error_reply(error, *(() if read_all else (CLOSE,)))
        except ClientGone:
            raise
        except Exception:
            log.exception("request_failed", route=endpoint.path)
            return error_reply(ApiError("Internal server error"))

    def _packed(self, reply: Reply, coding: Coding | None) -> Reply:
        if coding is not None and self._compression.applies(reply):
            return self._compression.compressed(reply, coding)
        return reply

    @property
    def _images(self) -> ImageIntake:
        assert self._runtime.images is not None  # as the renderer takes images
        return self._runtime.images

    async def _with_media(
        self,
        outcome: NeedsImages | NeedsSizes | FromKept,
        pool: PoolName,
        coding: Coding | None,
        headers: Mapping[bytes, bytes],
        known: frozenset[str],
    ) -> Reply:
        """Raises ApiError."""
        if isinstance(outcome, FromKept):
            held = await self._images.hold(outcome.images)
            return replace(outcome.reply, on_sent=held.release)
        if isinstance(outcome, NeedsSizes):
            return await self._with_sizes(outcome, pool, coding, _scope(headers))
        return await self._with_images(outcome, pool, coding, _scope(headers), known)

    async def _with_images(
        self,
        request: NeedsImages,
        pool: PoolName,
        coding: Coding | None,
        scope: str | None,
        known: frozenset[str],
    ) -> Reply:
        """Raises ApiError."""
        held = await self._images.prepare(request.images, scope, _copies(coding))
        try:
            reply = await self._runtime.pools[pool].run(
                lambda: self._packed(
                    request.finish([replace(image, known=known) for image in held.images]), coding
                )
            )
            self._images.claim_names(held)
        except BaseException:
            held.release()
            raise
        return replace(reply, on_sent=held.release)

    async def _with_sizes(
        self, request: NeedsSizes, pool: PoolName, coding: Coding | None, scope: str | None
    ) -> Reply:
        """Raises ApiError."""
        places = await self._images.measure(request.images, scope)
        return await self._runtime.pools[pool].run(lambda: self._packed(request.finish(places), coding))

    def _is_inline(self, endpoint: Endpoint, body: bytes) -> bool:
        settings = self._settings
        if endpoint.pool == "derender" and CHUNK in body[: settings.inline_chunk_bytes]:
            return len(body) <= settings.inline_chunk_bytes
        if len(body) <= settings.inline_body_bytes:
            return True
        return endpoint.pool == "render" and self._idle_loop.takes(body)

    def _admit(self) -> None:
        if self._runtime.in_flight > self._settings.max_concurrency:
            self._runtime.metrics.refused.labels("concurrency").inc()
            raise Overloaded("too many requests in progress", retry_after=1)

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limit = self._settings.max_body_bytes
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        message = await self._receive(receive)
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(body) > limit:
                raise _too_large(limit)
            return body
        pieces, size = [body], len(body)
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                while message.get("more_body", False):
                    message = await self._receive(receive)
                    piece = message.get("body", b"")
                    size += len(piece)
                    if size > limit:
                        raise _too_large(limit)
                    pieces.append(piece)
        except TimeoutError:
            raise _too_slow() from None
        return b"".join(pieces)

    async def _receive(self, receive: Receive) -> Message:
        receiving = _Begun(receive)
        message = receiving.message
        if message is None:
            try:
                async with asyncio.timeout(self._settings.body_timeout):
                    message = await receiving
            except TimeoutError:
                raise _too_slow() from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message


class _Begun:
    """``receive()``, begun: what has arrived already is there at once, without the timer that waiting needs
    and that costs as much as reading a chunk."""

    def __init__(self, receive: Receive) -> None:
        self.message: Message | None = None
        self._rest: Generator[Any, Any, Message] = receive().__await__()
        self._awaited: Any = None
        try:
            self._awaited = next(self._rest)
        except StopIteration as done:
            self.message = done.value

    def __await__(self) -> Generator[Any, Any, Message]:
        """Once, when there is no message yet."""
        try:
            yield self._awaited
        except BaseException:  # cancelled
            self._rest.close()
            raise
        return (yield from self._rest)


def _copies(coding: Coding | None) -> int:
    """How often a request has its items in memory: a reply that is packed is put together first."""
    return 1 if coding is None else 3


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the request body is larger than {limit} bytes")


def _too_slow() -> ApiError:
    return ApiError("the request body did not arrive in time", status=408, type="RequestTimeoutError")


def _check_content_type(headers: Mapping[bytes, bytes]) -> None:
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise BadRequest(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            type="Bad Request",
        )


def _scope(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(MEDIA_SCOPE_HEADER)
    return hashlib.sha256(given).hexdigest() if given else None


def _known(headers: Mapping[bytes, bytes]) -> frozenset[str]:
    """Of what images the caller has the data."""
    given = headers.get(KNOWN_HEADER, b"").decode("latin-1")
    return frozenset(filter(None, given.split(",")))


def _request_id(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"x-request-id")
    return given.decode("latin-1") if given else None
