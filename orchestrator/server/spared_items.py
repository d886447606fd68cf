"""Images that an engine has been given before, and is sent the names of (``core.given_items``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from orchestrator.core import legs
from orchestrator.core.media import Item
from orchestrator.hops.errors import Failed, GivenUp, HopError
from orchestrator.pool.member import Member

if TYPE_CHECKING:
    from orchestrator.server.services import Services

log = structlog.get_logger(__name__)


class SparedItems:
    """Of one run, whose legs follow each other."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._wanted = services.settings.policy.known_images == "named"
        self._lacked = False
        """A leg has failed, perhaps for want of some: those that follow have all."""
        self._spared = False
        """The leg under way goes without some."""
        self._form: str | None = None
        self._items: tuple[Item, ...] = ()
        """That its engine will have when it has answered, unless all is forgotten meanwhile."""
        self._begun_at = 0

    def for_engine(self, prompt: legs.RenderedPrompt, member: Member) -> legs.RenderedPrompt:
        """``prompt``, of the next leg, without what ``member`` has been given."""
        self._spared, self._items = False, ()
        if not self._applies(prompt, member):
            return prompt
        self._items, self._form, self._begun_at = prompt.media, prompt.form, member.given.times_forgotten
        known = frozenset() if self._lacked else member.given.among(prompt.media, prompt.form)
        count = self._services.metrics.media_items
        named = sum(item.hash in known for item in prompt.media)
        count.labels("named").inc(named)
        count.labels("whole").inc(len(prompt.media) - named)
        if not known:
            return prompt
        self._spared = True
        return legs.naming(prompt, known)

    def answered(self, member: Member) -> None:
        """``member`` has done the leg under way."""
        if member.given.times_forgotten == self._begun_at:
            most = self._services.settings.policy.engine_image_cache_bytes
            member.given.answered(self._items, self._form, most)

    def missed(self, error: HopError, member: Member, leg_id: str) -> bool:
        """Whether the leg under way may have failed for want of an image; then what follows it goes without
        none. An engine does not say so: it answers as to a fault of its own."""
        if not self._spared:
            return False
        self._spared, self._lacked = False, True
        member.given.forget()
        if not isinstance(error, Failed) or isinstance(error, GivenUp):
            return False
        self._services.metrics.media_resends.labels(error.hop).inc()
        log.info("images sent again", hop=error.hop, member=member.url, leg=leg_id, detail=error.detail)
        return True

    def _applies(self, prompt: legs.RenderedPrompt, member: Member) -> bool:
        """An engine that says that it keeps none may end of a name."""
        return (
            self._wanted
            and prompt.form is not None
            and prompt.encodings is None
            and prompt.pictures is None
            and bool(prompt.media)
            and member.capabilities.known.keeps_images is not False
        )
