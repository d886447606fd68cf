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
from orchestrator.server.held_kv import HeldKv, left_by, why_useless

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
        except HopError as error:
            if error.answer_lost:
                self._note_left("prefill_unanswered")
            return
        except asyncio.CancelledError:
            self._call.cancel()
            self._note_left("prefill_unanswered")
            return
        problem = why_useless(services, self._member, answer, self._prompt, self._leg_id)
        if problem is not None or answer.kv_params is None:
            if problem is not None and answer.finish_reason != "abort":
                services.note_unusable_prefill(self._member, self._leg_id, problem)
            if (left := left_by(services, self._member, answer)) is not None:
                self._note_left(left)
            return
        freed = False
        # Freeing begins at once, so our own deadline has no part in it.
        kv = HeldKv(services)
        kv.hold(answer.kv_params, self._member, self._leg_id, lambda: None)
        try:
            if services.policy.held_kv == "free":
                kv.stop_timer()
                freed = await self._free(*kv.take_params(f"{self._leg_id}f"))
        finally:
            kv.settle()
            if freed:
                services.metrics.freed.inc()
            else:
                self._note_left(REASON)

    def _note_left(self, reason: str) -> None:
        self._services.note_stranded(reason, len(self._prompt.token_ids))

    async def _free(self, kv_params: dict[str, Any] | None, leg_id: str) -> bool:
        services = self._services
        member = services.decode_pool.choose(
            suits=lambda member: member.pulls_from(self._member), finishing=True
        )
        if member is None or kv_params is None:
            return False
        placement = services.settings.policy.kv_params_placement
        request = legs.freeing_leg(self._prompt, leg_id, kv_params, placement)
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
