"""Hop 1: the client's body, unchanged, to the render tier; its reply, parsed, back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from orchestrator.core.item_store import NAMED_CHARS, Kept
from orchestrator.core.legs import (
    RenderedPrompt,
    RenderReplyError,
    read_render_replies,
    read_render_reply,
    with_known_data,
)
from orchestrator.hops.transport import Reply, Transport, garbled
from render_tier.protocol.unreadable import UNREADABLE

Endpoint = Literal["chat", "completions", "messages", "responses", "generate"]

PATHS: Mapping[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "generate": "/inference/v1/generate",
}

FINGERPRINT_HEADER = "X-Render-Fingerprint"
KNOWN_HEADER = "X-Known-Items"
NAMES_HEADER = "X-Item-Names"
BY_CONTENT = "content"
"""What it says of a reply in which no hash of an image is a client's name for it."""


class _Name(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


def model_card(models: bytes, name: str) -> msgspec.Raw | None:
    """The card of ``name`` in a list of models, as it stands there. Raises ``HopError``."""
    try:
        cards = msgspec.json.decode(models, type=_Models).data
        return next((card for card in cards if msgspec.json.decode(card, type=_Name).id == name), None)
    except UNREADABLE as error:
        raise garbled("render", "/v1/models", error) from error


def models_for(models: bytes, seen: Callable[[str], bool]) -> bytes:
    """A list of models with those alone whose names are ``seen``. Raises ``HopError``."""
    try:
        cards = [c for c in _models_decoder.decode(models).data if seen(_name_decoder.decode(c).id)]
    except UNREADABLE as error:
        raise garbled("render", "/v1/models", error) from error
    return msgspec.json.encode({"object": "list", "data": cards})


_models_decoder = msgspec.json.Decoder(_Models)
_name_decoder = msgspec.json.Decoder(_Name)


@dataclass(frozen=True, slots=True)
class Rendered:
    prompts: list[RenderedPrompt]
    fingerprint: str | None
    """Of tokenizer, template and parsers; derender must have the same."""


class RenderClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def render(
        self,
        base_url: str,
        endpoint: Endpoint,
        body: bytes,
        headers: Mapping[str, str],
        budget: float,
        known: Mapping[str, Kept] | None = None,
    ) -> Rendered:
        """One prompt, or for completions one or more. ``known``: data of images by their hashes, which a
        render tier that can leaves out of its reply. Raises ``HopError``; a 4xx is the client's error."""
        if known:
            headers = {**headers, KNOWN_HEADER: ",".join(name[:NAMED_CHARS] for name in known)}
        url = f"{base_url}{PATHS[endpoint]}/render"
        reply = await self._transport.call("render", "POST", url, body, budget=budget, headers=headers)
        try:
            prompts = (
                read_render_replies(reply.body)
                if endpoint == "completions"
                else [read_render_reply(reply.body)]
            )
        except RenderReplyError as error:
            raise garbled("render", url, error) from error
        fingerprint = reply.headers.get(FINGERPRINT_HEADER.lower())
        if reply.headers.get(NAMES_HEADER.lower()) == BY_CONTENT:
            prompts = [replace(prompt, form=fingerprint or "") for prompt in prompts]
        if known:
            prompts = [with_known_data(p, known) if p.lacks_data else p for p in prompts]
        return Rendered(prompts, fingerprint)

    async def post(
        self, base_url: str, path: str, body: bytes, headers: Mapping[str, str], budget: float
    ) -> Reply:
        """``path`` as the render tier answers it."""
        return await self._transport.call(
            "render", "POST", base_url + path, body, budget=budget, headers=headers
        )

    async def models(self, base_url: str, budget: float) -> Reply:
        """``GET /v1/models`` as the render tier answers it."""
        return await self._transport.call("render", "GET", f"{base_url}/v1/models", None, budget=budget)
