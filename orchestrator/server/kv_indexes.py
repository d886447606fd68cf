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
    """Only of members whose pool looks at prefixes."""

    def __init__(self, settings: Settings, pools: Iterable[Pool], metrics: Metrics) -> None:
        self._settings = settings.kv_events
        self._most = settings.selection.prefix_blocks * settings.selection.prefix_block_tokens
        self._metrics = metrics
        self._tasks: list[asyncio.Task[None]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        endpoints = {url.rstrip("/"): endpoint for url, endpoint in self._settings.endpoints.items()}
        self._followed = [
            (member, endpoints[member.url])
            for pool in pools
            if pool.index is not None
            for member in pool.members
            if member.url in endpoints
        ]
        config = self._settings
        for member, _endpoint in self._followed:
            member.reports = ReportedCache(config.index_blocks, config.drift_window, config.drift_share)

    def start(self) -> None:
        """Begin to follow, in the background."""
        if not self._followed:
            return
        import zmq

        from orchestrator.hops.kv_events import KvEventFollower, Limits

        config = self._settings
        limits = Limits(
            queued_messages=config.queue,
            message_bytes=config.message_bytes,
            replay_timeout=config.replay_timeout,
        )
        replays = {url.rstrip("/"): endpoint for url, endpoint in config.replay.items()}
        self._context = context = zmq.Context()
        for member, endpoint in self._followed:
            assert member.reports is not None
            follower = KvEventFollower(
                member.url,
                member.reports,
                context,
                endpoint,
                replays.get(member.url),
                config.topic,
                limits,
            )
            self._tasks.append(asyncio.create_task(follower.run(), name="kv events"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._context is not None:
            self._context.destroy(linger=0)

    def looked_up(self, prompt: RenderedPrompt) -> LookedUp | None:
        """None when nobody is followed, and for prompts with media, whose keys are not known here."""
        features = prompt.fields.get("features")
        if not self._followed or (features is not None and bytes(features) != b"null"):
            return None
        salt = prompt.fields.get("cache_salt")
        return LookedUp.of(
            prompt.token_ids,
            most=self._most,
            model=prompt.model,
            salt=None if salt is None else msgspec.json.decode(salt, type=str | None),
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
