"""The indexes of engines that report what they hold: made from the settings, followed, compared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import structlog

from orchestrator.core.exact_index import LookedUp
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.reported_cache import ReportedCache
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.metrics import Metrics
from orchestrator.settings import Settings

if TYPE_CHECKING:
    import zmq

log = structlog.get_logger(__name__)


class KvIndexes:
    """Only of members whose pool looks at prefixes, for as long as they are members."""

    def __init__(self, settings: Settings, pools: Iterable[Pool], metrics: Metrics) -> None:
        self._settings = settings.kv_events
        self._most = settings.selection.prefix_blocks * settings.selection.prefix_block_tokens
        self._pools = tuple(pools)
        self._metrics = metrics
        self._followers: dict[Member, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._started = False

    def start(self) -> None:
        """Begin to follow, in the background."""
        self._started = True
        for pool in self._pools:
            for member in pool.members:
                self.member_changed(pool, member)

    def member_changed(self, pool: Pool, member: Member) -> None:
        """It has come or gone, if it has not changed otherwise."""
        if member.leaving:
            self._leave(member)
        elif self._started and pool.index is not None and member not in self._followers:
            endpoint = self._settings.endpoint_of(member.url)
            if endpoint is not None:
                self._follow(member, endpoint)

    def _follow(self, member: Member, endpoint: str) -> None:
        import zmq

        from orchestrator.hops.kv_events import KvEventFollower, Limits

        config = self._settings
        if self._context is None:
            self._context = zmq.Context()
        member.reports = ReportedCache(config.index_blocks, config.drift_window, config.drift_share)
        follower = KvEventFollower(
            member.url,
            member.reports,
            self._context,
            endpoint,
            config.replay_of(member.url),
            config.topic,
            Limits(
                queued_messages=config.queue,
                message_bytes=config.message_bytes,
                replay_timeout=config.replay_timeout,
            ),
        )
        self._followers[member] = asyncio.create_task(follower.run(), name="kv events")

    def _leave(self, member: Member) -> None:
        task = self._followers.pop(member, None)
        if task is not None:
            member.reports = None
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for member in list(self._followers):
            self._leave(member)
        if self._ending:
            await asyncio.wait(self._ending)
        if self._context is not None:
            self._context.destroy(linger=0)

    def looked_up(self, prompt: RenderedPrompt) -> LookedUp | None:
        """None when nobody is followed."""
        if not self._followers:
            return None
        salt = prompt.fields.get("cache_salt")
        return LookedUp.of(
            prompt.token_ids,
            most=self._most,
            model=prompt.model,
            salt=None if salt is None else msgspec.json.decode(salt, type=str | None),
            media=prompt.media,
        )

    def compare(self, role: str, member: Member, prompt: LookedUp, predicted: int, reported: int) -> None:
        """What was looked up when ``member`` was chosen with what it found; numbers of tokens."""
        reports = member.reports
        assert reports is not None
        before = reports.trusted
        missed = reports.compare(prompt, predicted, reported)
        self._metrics.kv_predictions.labels(role, "drifted" if missed else "held").inc()
        if before != reports.trusted:
            log.warning(
                "kv index", member=member.url, trusted=reports.trusted, predicted=predicted, reported=reported
            )
