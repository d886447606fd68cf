"""Hop 2 of a run: one prefill, its answer judged before anything of it can reach a decode engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from orchestrator.core import legs
from orchestrator.core.request_table import Event
from orchestrator.hops.errors import Failed, GivenUp, HopError, Overloaded, TimedOut
from orchestrator.hops.prefill import Prefilled
from orchestrator.pool.member import Member
from orchestrator.server.admission import Place
from orchestrator.server.held_kv import Left, left_by, why_useless
from orchestrator.server.late_prefill import LatePrefill
from orchestrator.server.leg import Leg

if TYPE_CHECKING:
    from orchestrator.server.run import Run


AskTurn = Callable[[], Awaitable[Mapping[str, Any] | None]]


class PrefillLeg(Leg):
    kind = "prefill"

    def __init__(
        self,
        run: Run,
        member: Member,
        leg_id: str,
        prompt: legs.RenderedPrompt,
        place: Place | None,
        ask_turn: AskTurn | None,
    ) -> None:
        """``prompt``: the run's, as this engine is to get it. ``ask_turn`` gives params of kept KV that the
        prompt goes on from, where there is some."""
        super().__init__(run, member, leg_id)
        self._prompt = prompt
        self._ask_turn = ask_turn
        self._turn: Mapping[str, Any] | None = None
        self._place = place

    async def carry_out(self) -> None:
        run, services = self.run, self.services
        run.exchange.timing.mark("prefill_started", perf_counter())
        if self._ask_turn is not None:
            self._turn = await self._ask_turn()
            if run.recalling:
                # The engine had nothing yet that could have been aborted.
                run.post(Event.PREFILL_FAILED)
                return
        try:
            with self.member.busy():
                answer = await self._answer()
        except asyncio.CancelledError:
            self._note_left("prefill_unanswered")
            raise
        except HopError as error:
            self._failed(error)
            return
        finally:
            if self._place is not None:
                self._place.leave()
        self.span.end()
        services.prefill_pool.succeeded(self.member)
        run.items.answered(self.member)
        problem = why_useless(services, self.member, answer, self._prompt, self.leg_id)
        if problem is None:
            self._succeeded(answer)
        else:
            self._useless(answer, problem)

    async def _answer(self) -> Prefilled:
        """Raises ``HopError``."""
        run, services = self.run, self.services
        # Not what is left of the request: an answer that comes while the leg is being aborted is still of
        # interest.
        limit = services.settings.timeouts.prefill
        call = asyncio.create_task(
            services.prefill_client.prefill(
                self.member.url,
                legs.prefill_leg(self._prompt, self.leg_id, run.placement, self._turn),
                run.exchange.engine_headers(self.span, limit),
                limit + services.settings.timeouts.cleanup,
            )
        )
        try:
            await asyncio.wait([call], timeout=limit)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.done():
            return call.result()
        headers = run.exchange.cleanup_headers(self.span)
        error = TimedOut("prefill", "the prefill hop timed out", member=self.member.url)
        if run.recalling:
            # It has been aborted, for longer than a prefill takes.
            call.cancel()
        else:
            LatePrefill(services, self.member, self.leg_id, self._prompt, headers, call).settle_soon()
            error.answer_lost = False  # it may still come
        raise error

    def _failed(self, error: HopError) -> None:
        run, services = self.run, self.services
        if error.answer_lost:
            self._note_left("prefill_unanswered")
        if self._turn is not None and error.answered and not isinstance(error, Overloaded):
            services.kept_turns.note_unread(self.member, error.detail)
            self.span.end(error)
            run.post(run.machine.after_unread_turn(), error)
            return
        if run.items.missed(error, self.member, self.leg_id):
            self.span.end(error)
            run.post(run.machine.after_missed_items(), error)
            return
        if not run.recalling:
            self.note_failure(services.prefill_pool, error)
        event = run.machine.after_prefill_failure(
            retry_safe=(error.retry_safe or self._lacked_images) and services.prefill_pool.available,
            client_fault=error.client_fault,
        )
        run.post(event, error)

    @property
    def _lacked_images(self) -> bool:
        """The engine has failed, it may be for want of what encoders have made. The next one gets the images
        themselves."""
        return self._prompt.encodings is not None and self._prompt.lacks_data

    def _useless(self, answer: Prefilled, problem: str) -> None:
        run = self.run
        if answer.finish_reason == "abort" and not run.recalling:
            self._note_left("prefill_aborted")
            self._failed(GivenUp("prefill", "the prefill engine gave the request up", detail=problem))
            return
        if (left := left_by(self.services, self.member, answer)) is not None:
            self._note_left(left)
        if not run.recalling:
            self.services.note_unusable_prefill(self.member, self.leg_id, problem)
        error = Failed("prefill", "the prefill engine kept no KV for decode", detail=problem)
        run.post(run.machine.after_unusable_prefill(), error)

    def _note_left(self, reason: Left) -> None:
        self.services.note_stranded(reason, len(self._prompt.token_ids))

    def _succeeded(self, answer: Prefilled) -> None:
        run, services, timing = self.run, self.services, self.run.exchange.timing
        assert answer.kv_params is not None
        services.fleet.note_params(self.member, answer.kv_params)
        run.members.compare_cached("prefill", self.member, answer.cached_tokens)
        services.prefill_pool.remember(self.member, run.members.affinity)
        timing.mark("prefilled", perf_counter())
        timing.prefill_member = self.member.url
        if not run.continued:
            run.cached_tokens = answer.cached_tokens
            run.exchange.answer.model = run.exchange.answer.model or answer.model
            run.prompt_logprobs = answer.prompt_logprobs
        run.kv_params = answer.kv_params
        run.post(run.machine.prefilled())
