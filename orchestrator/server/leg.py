"""What the legs of a run have in common: a hop on a member, under an id of its own, as a task."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from orchestrator.hops.errors import HopError
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool

if TYPE_CHECKING:
    from orchestrator.server.run import Run


class Leg(ABC):
    """After ``cancel`` it tells the run nothing."""

    kind = "leg"

    def __init__(self, run: Run, member: Member, leg_id: str) -> None:
        self.run = run
        self.member = member
        self.leg_id = leg_id
        self.services = run.exchange.services
        self.cancelled = False
        self.span = run.exchange.span.hop(self.kind, member=member.url, leg=leg_id)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.leg_id} on {self.member.url} cancelled={self.cancelled}>"

    def start(self) -> None:
        self._task = self.services.supervisor.spawn(
            self._recorded(), f"{self.kind} {self.leg_id}", self.run.crashed
        )

    def cancel(self) -> None:
        self.cancelled = True
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()

    async def _recorded(self) -> None:
        try:
            await self.carry_out()
        finally:
            self.span.end(cancelled=self.cancelled)

    @abstractmethod
    async def carry_out(self) -> None:
        """Run the hop and post its end to the run."""

    def note_failure(self, pool: Pool, error: HopError) -> None:
        """And prefer other members from now on."""
        self.span.end(error)
        self.services.note_failure(pool, self.member, error, self.leg_id)
        self.run.members.tried.add(self.member.url)
