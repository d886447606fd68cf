"""A request's render: a place in the queue, a member, and another member where a failure may be retried."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.core.media import data_of
from orchestrator.core.request_table import Event
from orchestrator.core.selection import Affinity
from orchestrator.hops.errors import HopError, NoMembers
from orchestrator.hops.render import Rendered
from orchestrator.pool.member import Member
from orchestrator.server.conversations import Conversation
from render_tier.protocol.errors import ApiError

if TYPE_CHECKING:
    from orchestrator.core.item_store import Kept
    from orchestrator.server.exchange import Exchange
    from orchestrator.server.tracing import Span

Failure = tuple[Event, ApiError | None]
"""What the request's machine is told, and the error that the client gets of it."""


class Rendering:
    """What lasts from one attempt to the next. ``body``: the client's own."""

    def __init__(self, body: bytes, session: str | None, conversation: Conversation | None) -> None:
        self._client_body = body
        self._body = body
        self._session = session
        self._conversation = conversation
        self._attempts = 0
        self._tried: set[str] = set()

    async def attempt(self, exchange: Exchange) -> Rendered | Failure:
        """On one member that has not failed yet. The first attempt waits for the request's place too."""
        services = exchange.services
        self._attempts += 1
        member: Member | None = None
        try:
            if self._attempts == 1:
                await exchange.enter()
                if self._conversation is not None:
                    self._body = await self._conversation.body(self._client_body)
            async with services.admission.place("render", exchange.who):
                member = services.render_pool.choose(
                    self._tried,
                    Affinity(self._session),
                    record=exchange.note_decision,
                    suits=services.deployment.has_engines_for,
                )
                if member is None:
                    raise NoMembers("render", "there is no render tier")
                rendered = await self._on(member, exchange)
        except HopError as error:
            return (Event.RENDER_FAILED, error) if member is None else self._failed(exchange, member, error)
        except ApiError as error:
            # No place, or nothing to go on from.
            return Event.RENDER_FAILED, error
        services.render_pool.succeeded(member)
        exchange.generation.rendered_by(member.generation)
        return rendered

    async def _on(self, member: Member, exchange: Exchange) -> Rendered:
        """Raises ``HopError``."""
        span = exchange.span.hop("render", member=member.url)
        try:
            with member.busy():
                return await self._rendered(member, exchange, span)
        except HopError as error:
            span.end(error)
            raise
        finally:
            span.end()

    async def _rendered(self, member: Member, exchange: Exchange, span: Span) -> Rendered:
        """With the data of all images: of those that are kept here, render is not asked for it. Raises
        ``HopError``."""
        items, now = exchange.services.items, asyncio.get_running_loop().time
        over = now() + exchange.budget(exchange.services.settings.timeouts.render)

        async def render(known: Mapping[str, Kept]) -> Rendered:
            left = over - now()
            headers = exchange.call_headers(span, left)
            client = exchange.services.render_client
            return await client.render(member.url, exchange.answer.endpoint, self._body, headers, left, known)

        if not items.max_bytes:
            return await render({})
        known = items.latest() if b"image" in self._body else {}
        rendered = await render(known)
        if known and any(prompt.lacks_data for prompt in rendered.prompts):
            # Another image's hash begins as one that is kept, or what is kept was made in another way.
            rendered = await render({})
        for prompt in rendered.prompts:
            if prompt.form is not None and prompt.strings:
                for name, data in data_of(prompt.fields["features"], prompt.strings).items():
                    items.keep(name, prompt.form, data)
        return rendered

    def _failed(self, exchange: Exchange, member: Member, error: HopError) -> Failure:
        services = exchange.services
        if self._conversation is not None and self._conversation.lets_go(error):
            self._body = self._client_body
            return Event.RENDER_RETRY, None
        self._tried.add(member.url)
        services.note_failure(services.render_pool, member, error)
        if error.retry_safe and self._attempts < services.settings.policy.render_attempts:
            services.metrics.retries.labels("render").inc()
            return Event.RENDER_RETRY, None
        return Event.RENDER_FAILED, error
