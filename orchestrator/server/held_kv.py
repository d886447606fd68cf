"""The KV that a prefill engine holds for one run: whether its params may be used, at most once, and our own
deadline for them, which is shorter than the engine's lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from orchestrator.core.kv_params import lease_seconds, unusable
from orchestrator.core.legs import RenderedPrompt
from orchestrator.hops.prefill import Prefilled
from orchestrator.server.services import Services


class HeldKv:
    """``on_end`` is called when our deadline passes while the KV is held and its timer runs."""

    def __init__(self, services: Services, on_end: Callable[[], None]) -> None:
        self._services = services
        self._on_end = on_end
        self._params: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.held = False

    def __repr__(self) -> str:
        return f"<HeldKv held={self.held} timed={self._timer is not None}>"

    def hold(self, params: dict[str, Any]) -> None:
        self._params = params
        self.held = True
        self._services.integrity.leases += 1
        seconds = seconds_left(self._services, params)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_end)

    def take_params(self) -> dict[str, Any] | None:
        """Taken out, so that nothing can send them a second time."""
        params, self._params = self._params, None
        return params

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def settle(self) -> bool:
        """The KV was pulled, or is left to the lease. Whether there was any."""
        self.stop_timer()
        self._params = None
        held, self.held = self.held, False
        if held:
            self._services.integrity.leases -= 1
        return held


def why_useless(services: Services, answer: Prefilled, prompt: RenderedPrompt, leg_id: str) -> str | None:
    """Why nothing of a prefill's answer may reach a decode engine, or None. To be asked once: it claims the
    params."""
    problem = unusable(answer.finish_reason, answer.kv_params, len(prompt.token_ids), leg_id)
    if problem is None and answer.kv_params is not None:
        if seconds_left(services, answer.kv_params) <= 0:
            return "the lease had ended when the params arrived"
        if not services.used_params.claim(answer.kv_params):
            return "these params have been used before"
    return problem


def seconds_left(services: Services, params: dict[str, Any]) -> float:
    """How long the params of a prefill that has just answered may be used."""
    lease = services.settings.lease
    return lease_seconds(params, now=time.time(), configured=lease.engine_seconds, fraction=lease.fraction)
