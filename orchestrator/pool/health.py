"""Background probes, so that an idle member's death is known before a request meets it.

A probe is a GET of a health path, never an inference. Members are probed side by side, each at its own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool

Probe = Callable[[str], Awaitable[bool]]
"""Given a member's base URL: whether it is well. Must be bounded in time and must not raise."""

log = structlog.get_logger(__name__)


class HealthMonitor:
    """Runs until cancelled. ``on_change`` is called when a member has become well or unwell."""

    def __init__(
        self,
        pools: Iterable[Pool],
        probe: Probe,
        interval: float,
        on_change: Callable[[Pool, Member], None] = lambda _pool, _member: None,
    ) -> None:
        self._pools = list(pools)
        self._probe = probe
        self._interval = interval
        self._on_change = on_change

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for pool in self._pools:
                for member in pool.members:
                    group.create_task(self._watch(pool, member))

    async def check_all(self) -> None:
        """One probe of every member."""
        async with asyncio.TaskGroup() as group:
            for pool in self._pools:
                for member in pool.members:
                    group.create_task(self._check(pool, member))

    async def _watch(self, pool: Pool, member: Member) -> None:
        while True:
            await self._check(pool, member)
            await asyncio.sleep(self._interval)

    async def _check(self, pool: Pool, member: Member) -> None:
        well = await self._probe(member.url)
        if well != member.probed:
            log.info("member health", role=pool.role, member=member.url, healthy=well)
            member.probed = well
            self._on_change(pool, member)
