"""Which decode legs leave KV for the next turn, and which prefill legs get some (``core.turns``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from orchestrator.core.kv_params import UsedParams
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.turns import Turn, UnusableTurn, checked, scope, usable_seconds
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.metrics import Metrics
from orchestrator.server.turn_stores import TurnStore
from orchestrator.turn_settings import TurnSettings

log = structlog.get_logger(__name__)


class KeptTurns:
    """``now`` is the clock of the event loop."""

    def __init__(
        self,
        settings: TurnSettings,
        store: TurnStore,
        decode_pool: Pool,
        metrics: Metrics,
        used_params: UsedParams,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._store = store
        self._decode_pool = decode_pool
        self._metrics = metrics
        self._used_params = used_params
        self._now = now

    def __repr__(self) -> str:
        return f"<KeptTurns {self._store!r}>"

    def kept_by(self, member: Member) -> float:
        """For how many seconds from now what ``member`` decodes may be read by a prefill engine; 0 where it
        keeps nothing, where that is not known, or where it is not wanted."""
        known = member.capabilities.known
        if not self._settings.reuse or known.turn_seconds is None or known.block_size is None:
            return 0.0
        return usable_seconds(known.turn_seconds, self._settings.fraction)

    async def keep(
        self,
        tenant: str,
        member: Member,
        prompt: RenderedPrompt,
        output: Sequence[int],
        params: Mapping[str, Any],
    ) -> None:
        """``params`` came with the end of a decode of ``prompt`` on ``member``."""
        seconds, block_size = self.kept_by(member), member.capabilities.known.block_size
        if not seconds or block_size is None:
            return
        try:
            tokens, usable = checked(params, len(prompt.token_ids) + len(output), block_size)
        except UnusableTurn as problem:
            self._metrics.kept_turns.labels("unusable").inc()
            log.warning("unusable turn", member=member.url, problem=str(problem))
            return
        now = self._now()
        filed = [*prompt.identified_ids, *output][:tokens]
        turn = Turn.of(tokens, usable, member.url, now, now + seconds)
        whose = scope(tenant, member.generation, prompt.cache_identity)
        kept = await self._store.keep(whose, len(prompt.token_ids), filed, turn)
        self._metrics.kept_turns.labels(kept).inc()

    async def take(self, tenant: str, prefill: Member, prompt: RenderedPrompt) -> Mapping[str, Any] | None:
        """Params of kept KV that ``prompt`` goes on from, for ``prefill`` to read; once."""
        if not self._settings.reuse or prefill.capabilities.known.turn_seconds is None:
            return None
        if prompt.wants_prompt_logprobs:
            # They are computed, so nothing is read for them.
            return None
        whose = scope(tenant, prefill.generation, prompt.cache_identity)
        found = await self._store.take(whose, prompt.identified_ids)
        if not isinstance(found, Turn):
            self._note(found)
            return None
        holder = self._decode_pool.find(found.holder)
        params = found.read()
        if (
            holder is None
            or not holder.alive
            or holder.same_since >= found.kept_at
            or not holder.pulls_from(prefill)
        ):
            self._note("engine_gone")
            return None
        if not self._used_params.claim(params):
            self._note("given_before")
            return None
        self._note("used")
        return params

    def note_unread(self, prefill: Member, problem: str) -> None:
        """A prefill that was given params has failed, and computes the prompt instead."""
        self._note("not_read")
        log.warning("kept turn not read", member=prefill.url, problem=problem)

    def _note(self, result: str) -> None:
        self._metrics.turn_reuse.labels(result).inc()
