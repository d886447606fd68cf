"""Hop 2 of a run: one prefill, its answer judged before anything of it can reach a decode engine."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from orchestrator.core import legs
from orchestrator.core.kv_params import unusable
from orchestrator.hops.errors import Failed, HopError, TimedOut
from orchestrator.hops.prefill import Prefilled
from orchestrator.pool.member import Member
from orchestrator.server.admission import Place
from orchestrator.server.held_kv import seconds_left
from orchestrator.server.leg import Leg

if TYPE_CHECKING:
    from orchestrator.server.run import Run


class PrefillLeg(Leg):
    kind = "prefill"

    def __init__(self, run: Run, member: Member, leg_id: str, place: Place | None) -> None:
        super().__init__(run, member, leg_id)
        self._prompt = run.leg_prompt
        self._place = place

    async def carry_out(self) -> None:
        run, services, timing = self.run, self.services, self.run.exchange.timing
        timing.mark("prefill_started", perf_counter())
        request = legs.prefill_leg(self._prompt, self.leg_id, run.placement)
        limit = services.settings.timeouts.prefill
        try:
            with self.member.busy():
                answer = await services.prefill_client.prefill(
                    self.member.url,
                    request,
                    run.exchange.engine_headers(limit),
                    # Not what is left of the request: an answer that comes while the leg is being aborted
                    # is still of interest.
                    limit,
                )
        except HopError as error:
            self._failed(error)
            return
        finally:
            if self._place is not None:
                self._place.leave()
        services.prefill_pool.succeeded(self.member)
        problem = self._problem(answer)
        if problem is None:
            self._succeeded(answer)
        else:
            self._useless(problem)

    def _failed(self, error: HopError) -> None:
        run, services = self.run, self.services
        if not run.recalling:
            self.note_failure(services.prefill_pool, error)
            if isinstance(error, TimedOut):
                services.abort_soon("prefill", self.member.url, self.leg_id)
        event = run.machine.after_prefill_failure(
            retry_safe=error.retry_safe and services.prefill_pool.available,
            client_fault=error.client_fault,
        )
        run.post(event, error)

    def _problem(self, answer: Prefilled) -> str | None:
        """Why the answer is of no use to decode, or None."""
        prompt_tokens = len(self._prompt.token_ids)
        problem = unusable(answer.finish_reason, answer.kv_params, prompt_tokens, self.leg_id)
        if problem is None and answer.kv_params is not None:
            if seconds_left(self.services, answer.kv_params) <= 0:
                return "the lease had ended when the params arrived"
            if not self.services.used_params.claim(answer.kv_params):
                return "these params have been used before"
        return problem

    def _useless(self, problem: str) -> None:
        run = self.run
        if not run.recalling:
            self.services.note_unusable_prefill(self.member, self.leg_id, problem)
        error = Failed("prefill", "the prefill engine kept no KV for decode", detail=problem)
        run.post(run.machine.after_unusable_prefill(), error)

    def _succeeded(self, answer: Prefilled) -> None:
        run, services, timing = self.run, self.services, self.run.exchange.timing
        assert answer.kv_params is not None
        run.compare_cached("prefill", self.member, answer.cached_tokens)
        services.prefill_pool.remember(self.member, run.affinity)
        timing.mark("prefilled", perf_counter())
        timing.prefill_member = self.member.url
        if not run.continued:
            run.cached_tokens = answer.cached_tokens
            run.prompt_logprobs = answer.prompt_logprobs
        run.kv_params = answer.kv_params
        run.post(run.machine.prefilled())
