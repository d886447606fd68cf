"""What members are asked between requests: whether they are well, and what they report."""

from __future__ import annotations

from orchestrator.core.parity import Role
from orchestrator.hops.errors import HopError
from orchestrator.hops.transport import Transport
from orchestrator.pool.discovery import Answer
from orchestrator.settings import Health


class Probes:
    def __init__(self, transport: Transport, settings: Health) -> None:
        self._transport = transport
        self._settings = settings

    async def well(self, role: Role, url: str) -> bool:
        if role != "render":
            return await self._status(url + self._settings.path_engine) == 200
        status = await self._status(url + self._settings.path_render)
        if status == 404:
            # A render tier without a readiness path is ready when it is alive.
            status = await self._status(f"{url}/health")
        return status == 200

    async def get(self, url: str) -> Answer | None:
        """None when there was no answer in time."""
        try:
            reply = await self._transport.get(url, self._settings.timeout)
        except HopError:
            return None
        return Answer(reply.status, reply.body)

    async def _status(self, url: str) -> int | None:
        answer = await self.get(url)
        return None if answer is None else answer.status
