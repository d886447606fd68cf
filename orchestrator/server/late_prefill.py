"""A prefill that nobody waits for any more: the hop's time was over, and the run has gone on without it.

The engine has been told to drop it. Where that came too late it answers all the same, and holds KV under its
lease: that is pulled and freed, or counted, as any KV that a run has given up (``policy.held_kv``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.core import legs
from orchestrator.hops.errors import HopError
from orchestrator.hops.prefill import Prefilled
from orchestrator.server.held_kv import HeldKv, seconds_left, why_useless

if TYPE_CHECKING:
    from orchestrator.pool.member import Member
    from orchestrator.server.services import Services

REASON = "prefill_timeout"
"""Of stranded KV."""


class LatePrefill:
    """``call`` is the hop, still under way; ``headers`` are those of a leg that cleans up."""

    def __init__(
        self,
        services: Services,
        member: Member,
        leg_id: str,
        prompt: legs.RenderedPrompt,
        headers: Mapping[str, str],
        call: asyncio.Task[Prefilled],
    ) -> None:
        self._services = services
        self._member = member
        self._leg_id = leg_id
        self._prompt = prompt
        self._headers = headers
        self._call = call

    def settle_soon(self) -> None:
        services = self._services
        services.supervisor.spawn(self._settle(), f"late prefill {self._leg_id}")
        # An engine that does not hear aborts sees the connection close.
        services.abort_soon("prefill", self._member.url, self._leg_id, self._give_up)

    def _give_up(self) -> None:
        self._call.cancel()

    async def _settle(self) -> None:
        services = self._services
        try:
            answer = await self._call
        except HopError:
            return  # nothing is held, or nobody can tell
        except asyncio.CancelledError:
            self._call.cancel()
            return
        if answer.kv_params is None:
            return
        problem = why_useless(services, answer, self._prompt, self._leg_id)
        if problem is not None:
            services.note_unusable_prefill(self._member, self._leg_id, problem)
            # After another end than that of its one token the engine has kept nothing.
            if answer.finish_reason == "length" and seconds_left(services, answer.kv_params) > 0:
                services.note_stranded(REASON, len(self._prompt.token_ids))
            return
        freed = False
        # Freeing begins at once, so our own deadline has no part in it.
        kv = HeldKv(services, lambda: None)
        kv.hold(answer.kv_params)
        try:
            if services.policy.held_kv == "free":
                kv.stop_timer()
                freed = await self._free(kv.take_params() or {})
        finally:
            kv.settle()
            if freed:
                services.metrics.freed.inc()
            else:
                services.note_stranded(REASON, len(self._prompt.token_ids))

    async def _free(self, kv_params: dict[str, Any]) -> bool:
        services = self._services
        member = services.decode_pool.choose()
        if member is None:
            return False
        request = legs.freeing_leg(
            self._prompt, f"{self._leg_id}f", kv_params, services.settings.policy.kv_params_placement
        )
        stream = services.decode_client.decode(member.url, request, self._headers, lambda _answer: None)
        try:
            with member.busy():
                async with asyncio.timeout(services.settings.timeouts.cleanup):
                    await stream.run()
        except (HopError, TimeoutError) as error:
            if isinstance(error, HopError):
                services.note_failure(services.decode_pool, member, error, self._leg_id)
            return False
        return True
