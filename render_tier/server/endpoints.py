"""The POST endpoints as functions from a body to a reply; `hot_routes` puts them on the wire.

Each runs to completion on one thread, on the event loop for a small body or in a pool. One for a request with
images runs until it knows them, and goes on when they are there, or when their sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs

import msgspec

from render_tier.protocol.anthropic import CountTokensRequest, MessagesRequest
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.request_fields import check_lengths
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.protocol.tokenize import (
    TokenizeChatRequest,
    TokenizeTextRequest,
    parse_detokenize,
    parse_tokenize,
)
from render_tier.protocol.validation import decode_object
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.requested_images import RequestedImages
from render_tier.server.metrics import Metrics
from render_tier.server.replies import Reply
from render_tier.server.service import Service
from render_tier.settings import Settings

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.families import Replacement
    from render_tier.multimodal.vision import PromptImage

FINGERPRINT_HEADER = b"x-render-fingerprint"
TOKEN_IDS_HEADER = b"x-token-ids"
COMPACT = b"base64"
ITEM_NAMES_HEADER = b"x-item-names"
BY_CONTENT = b"content"
"""All hashes of images are of their contents: none is a client's own name for one."""
BOOLEANS = {"true": True, "1": True, "false": False, "0": False, "": False}
MAX_QUERY_FIELDS = 100
PoolName = Literal["render", "derender"]


@dataclass(frozen=True)
class NeedsImages:
    """A request that is rendered with its images. ``finish`` raises ApiError."""

    images: RequestedImages
    finish: Callable[[Sequence[PromptImage]], Reply]


@dataclass(frozen=True)
class NeedsSizes:
    """A request of which no more is asked than its prompt, so that no image has to be processed. ``finish``
    raises ApiError."""

    images: RequestedImages
    finish: Callable[[Sequence[Replacement]], Reply]


Outcome = Reply | NeedsImages | NeedsSizes
Handler = Callable[[Service, bytes, str | None], Outcome]
"""Service, body, ``X-Request-Id`` → reply. Raises ApiError."""


@dataclass(frozen=True)
class Endpoint:
    path: str
    pool: PoolName
    handle: Handler
    summary: str
    bounded: bool = True
    """Whether a short body means little work; else it never runs on the event loop."""
    explain: Handler | None = None
    """Instead of `handle` where the query says ``explain=true``."""
    compact: Handler | None = None
    """Instead of `handle` where ``X-Token-Ids: base64`` asks for the compact form of IDs."""

    def handler(self, query: bytes, headers: Mapping[bytes, bytes]) -> Handler:
        """Raises BadRequest for a variant that does not exist."""
        if self.explain is not None and query and _wants_explanation(query):
            return self.explain
        if self.compact is not None and (form := headers.get(TOKEN_IDS_HEADER)) is not None:
            if form.lower() != COMPACT:
                raise BadRequest(
                    f"X-Token-Ids: {form[:40].decode('latin-1')!r} is not a form of token IDs; base64 is",
                    param="X-Token-Ids",
                )
            return self.compact
        return self.handle


def _wants_explanation(query: bytes) -> bool:
    try:
        fields = parse_qs(query.decode("latin-1"), max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise BadRequest(f"the query has more than {MAX_QUERY_FIELDS} fields") from None
    given = fields.get("explain", [""])[-1].lower()
    if given not in BOOLEANS:
        raise BadRequest(f"explain={given[:40]!r} is neither true nor false", param="explain")
    return BOOLEANS[given]


def build_endpoints(settings: Settings, metrics: Metrics) -> dict[str, Endpoint]:
    """The endpoints by path."""
    bounds = {"messages": settings.max_messages, "input": settings.max_messages, "tools": settings.max_tools}

    def read(body: bytes) -> dict[str, Any]:
        data = decode_object(body)
        check_lengths(data, bounds)
        return data

    def reply(
        service: Service,
        request: ChatCompletionRequest | MessagesRequest | ResponsesRequest,
        render: Callable[..., Rendered],
        *,
        compact: bool = False,
    ) -> Outcome:
        """``render`` takes the request's ``images``, where it has some."""

        def finish(images: Sequence[PromptImage]) -> Reply:
            rendered = render(images=images)
            _count_prompt(metrics, len(rendered.ids))
            headers = [(TOKEN_IDS_HEADER, COMPACT)] if compact else []
            if images and all(each.name_hash is None for each in images):
                headers.append((ITEM_NAMES_HEADER, BY_CONTENT))
            return _rendered(service, rendered.encode(compact=compact), *headers)

        return with_images(service, request, finish)

    def render_chat(
        service: Service, body: bytes, request_id: str | None, *, compact: bool = False
    ) -> Outcome:
        request = ChatCompletionRequest.parse(read(body), max_stop_strings=settings.max_stop_strings)
        render = partial(service.renderer.render_chat, request, request_id=request_id)
        return reply(service, request, render, compact=compact)

    def explain_chat(service: Service, body: bytes, request_id: str | None) -> Outcome:
        request = ChatCompletionRequest.parse(read(body), max_stop_strings=settings.max_stop_strings)

        def finish(images: Sequence[PromptImage]) -> Reply:
            explanation = service.renderer.explain_chat(request, request_id=request_id, images=images)
            return _rendered(service, [msgspec.json.encode(explanation)])

        return with_images(service, request, finish)

    def render_completions(service: Service, body: bytes, request_id: str | None) -> Reply:
        request = CompletionRequest.parse(
            read(body), max_stop_strings=settings.max_stop_strings, max_prompts=settings.max_prompts
        )
        generate = service.renderer.completions(request, request_id=request_id)
        for one in generate:
            _count_prompt(metrics, len(one.token_ids))
        return _rendered(service, [msgspec.json.encode(generate)])

    def render_messages(service: Service, body: bytes, request_id: str | None) -> Outcome:
        request = MessagesRequest.parse(read(body), max_stop_strings=settings.max_stop_strings)
        render = partial(service.renderer.render_messages, request, request_id=request_id)
        return reply(service, request, render)

    def render_responses(service: Service, body: bytes, _request_id: str | None) -> Outcome:
        request = ResponsesRequest.parse(read(body), max_stop_strings=settings.max_stop_strings)
        return reply(service, request, partial(service.renderer.render_responses, request))

    def count_messages(service: Service, body: bytes, _request_id: str | None) -> Outcome:
        request = CountTokensRequest.parse_count(read(body))

        def finish(places: Sequence[Replacement]) -> Reply:
            count = service.renderer.count_tokens(request, places=places)
            answer = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
            return Reply(200, msgspec.json.encode(answer))

        return with_sizes(service, request, finish)

    def derender_chat(service: Service, body: bytes, _request_id: str | None) -> Reply:
        return Reply(200, service.derenderer.chat(body))

    def derender_messages(service: Service, body: bytes, _request_id: str | None) -> Reply:
        return Reply(200, service.derenderer.messages(body))

    def derender_completions(service: Service, body: bytes, _request_id: str | None) -> Reply:
        return Reply(200, service.derenderer.completions(body))

    def derender_responses(service: Service, body: bytes, _request_id: str | None) -> Reply:
        return Reply(200, service.derenderer.responses(body))

    def tokenize(service: Service, body: bytes, _request_id: str | None) -> Outcome:
        request = parse_tokenize(read(body))

        def finish(places: Sequence[Replacement]) -> Reply:
            return Reply(200, msgspec.json.encode(service.renderer.tokenize(request, places=places)))

        if isinstance(request, TokenizeTextRequest):
            return finish(())
        return with_sizes(service, request, finish)

    def detokenize(service: Service, body: bytes, _request_id: str | None) -> Reply:
        return Reply(200, msgspec.json.encode(service.renderer.detokenize(parse_detokenize(read(body)))))

    # A template that a client brings may loop for as long as it is allowed to.
    bounded = not settings.trust_request_chat_template
    endpoints = (
        Endpoint(
            "/v1/chat/completions/render",
            "render",
            render_chat,
            "Chat request to GenerateRequest",
            bounded=bounded,
            explain=explain_chat,
            compact=partial(render_chat, compact=True),
        ),
        Endpoint(
            "/v1/completions/render", "render", render_completions, "Completions request to GenerateRequests"
        ),
        Endpoint(
            "/v1/responses/render",
            "render",
            render_responses,
            "Responses request to GenerateRequest",
            bounded=bounded,
        ),
        Endpoint(
            "/v1/messages/render",
            "render",
            render_messages,
            "Messages request to GenerateRequest",
            bounded=bounded,
        ),
        Endpoint(
            "/v1/messages/count_tokens",
            "render",
            count_messages,
            "Length of a Messages prompt",
            bounded=bounded,
        ),
        Endpoint(
            "/v1/chat/completions/derender", "derender", derender_chat, "Token IDs to a chat answer or chunk"
        ),
        Endpoint(
            "/v1/completions/derender", "derender", derender_completions, "Token IDs to a completion or chunk"
        ),
        Endpoint("/v1/messages/derender", "derender", derender_messages, "Token IDs to a message or events"),
        Endpoint(
            "/v1/responses/derender", "derender", derender_responses, "Token IDs to a response or its events"
        ),
        Endpoint("/tokenize", "render", tokenize, "Text or messages to token IDs", bounded=bounded),
        Endpoint("/detokenize", "render", detokenize, "Token IDs to text"),
    )
    return {endpoint.path: endpoint for endpoint in endpoints}


def with_images(
    service: Service,
    request: ChatCompletionRequest | MessagesRequest | ResponsesRequest,
    finish: Callable[[Sequence[PromptImage]], Reply],
) -> Reply | NeedsImages:
    """The reply of ``finish``, at once where there are no images. Raises ApiError."""
    images = service.renderer.requested_images(request)
    return finish(()) if images is None else NeedsImages(images, finish)


def with_sizes(
    service: Service,
    request: TokenizeChatRequest | CountTokensRequest,
    finish: Callable[[Sequence[Replacement]], Reply],
) -> Reply | NeedsSizes:
    """As `with_images`."""
    images = service.renderer.requested_images(request)
    return finish(()) if images is None else NeedsSizes(images, finish)


def _rendered(service: Service, pieces: Sequence[bytes], *headers: tuple[bytes, bytes]) -> Reply:
    fingerprint = service.assets.fingerprint.encode()
    return Reply(200, pieces[0], ((FINGERPRINT_HEADER, fingerprint), *headers), rest=tuple(pieces[1:]))


def _count_prompt(metrics: Metrics, length: int) -> None:
    metrics.prompt_tokens.inc(length)
    metrics.prompt_length.observe(length)
