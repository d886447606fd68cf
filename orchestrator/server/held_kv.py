"""The KV that a prefill engine holds for one run: whether its params may be used, at most once, and our own
deadline for them, which is shorter than the engine's lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from orchestrator.core.kv_params import decode_leg_id, lease_seconds, pushes, unusable
from orchestrator.core.legs import RenderedPrompt
from orchestrator.hops.prefill import Prefilled
from orchestrator.pool.member import Member
from orchestrator.server.services import Services


class HeldKv:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._params: dict[str, Any] | None = None
        self._prefill_leg_id = ""
        self._timer: asyncio.TimerHandle | None = None
        self.holder: Member | None = None
        """The prefill engine, while it holds KV."""
        self.pushed = False
        """The holder is to write it to the decode engine."""

    def __repr__(self) -> str:
        return f"<HeldKv held={self.held} timed={self._timer is not None}>"

    @property
    def held(self) -> bool:
        return self.holder is not None

    def hold(
        self, params: dict[str, Any], member: Member, prefill_leg_id: str, on_end: Callable[[], None]
    ) -> None:
        """``on_end`` is called when our deadline passes while the KV is held and its timer runs."""
        self._params = params
        self._prefill_leg_id = prefill_leg_id
        self.holder = member
        self.pushed = pushes(params)
        member.leases += 1
        self._services.integrity.leases += 1
        seconds = seconds_left(self._services, member, params)
        self._timer = asyncio.get_running_loop().call_later(seconds, on_end)

    def take_params(self, fresh_leg_id: str) -> tuple[dict[str, Any] | None, str]:
        """For a decode leg, and the id that it must have. Taken out, so that nothing can send them a
        second time."""
        params, self._params = self._params, None
        if params is None:
            return None, fresh_leg_id
        return params, decode_leg_id(params, self._prefill_leg_id, fresh_leg_id)

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def settle(self) -> bool:
        """The KV was pulled, or is left to the lease. Whether there was any."""
        self.stop_timer()
        self._params = None
        holder, self.holder = self.holder, None
        if holder is None:
            return False
        holder.leases -= 1
        self._services.integrity.leases -= 1
        return True


def why_useless(
    services: Services, member: Member, answer: Prefilled, prompt: RenderedPrompt, leg_id: str
) -> str | None:
    """Why nothing of a prefill's answer may reach a decode engine, or None. To be asked once: it claims the
    params."""
    problem = unusable(answer.finish_reason, answer.kv_params, len(prompt.token_ids), leg_id)
    if problem is None and answer.kv_params is not None:
        if seconds_left(services, member, answer.kv_params) <= 0:
            return "the lease had ended when the params arrived"
        if not services.used_params.claim(answer.kv_params):
            return "these params have been used before"
    return problem


Left = Literal["prefill_unusable", "prefill_aborted", "prefill_unanswered"]
"""Why a prefill engine may be left with KV that no run ever held; these count as stranded. The last two are
bounds: engines do not say whether an abort, or the end of a connection, met a prefill that had just ended."""


def left_by(services: Services, member: Member, answer: Prefilled) -> Left | None:
    """What an answer that no decode may use has left on its engine; None when nothing."""
    if answer.finish_reason == "abort":
        return "prefill_aborted"
    if answer.kv_params is not None and seconds_left(services, member, answer.kv_params) > 0:
        return "prefill_unusable"
    return None


def seconds_left(services: Services, member: Member, params: dict[str, Any]) -> float:
    """How long the params of a prefill of ``member`` that has just answered may be used."""
    lease = services.settings.lease
    known = member.capabilities.known.lease_seconds
    configured = lease.engine_seconds if known is None else min(known, lease.engine_seconds)
    return lease_seconds(params, now=time.time(), configured=configured, fraction=lease.fraction)
