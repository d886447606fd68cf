"""Hop 3 of a run: the engine's chunks, accounted for one by one and put on their way to the client; or the
one-token decode that only frees held KV."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from orchestrator.core import legs
from orchestrator.core.coalescing import Output, WeightVersionSpan
from orchestrator.core.request_table import Event
from orchestrator.hops.decode import DecodeStream
from orchestrator.hops.errors import Garbled, HopError
from orchestrator.hops.messages import EngineAnswer, present
from orchestrator.pool.member import Member
from orchestrator.server.admission import Place
from orchestrator.server.leg import Leg

if TYPE_CHECKING:
    from orchestrator.server.run import Run


class DecodeLeg(Leg):
    kind = "decode"

    def __init__(
        self,
        run: Run,
        member: Member,
        leg_id: str,
        request: Mapping[str, Any],
        place: Place | None,
        first_timeout: float | None = None,
    ) -> None:
        super().__init__(run, member, leg_id)
        self._place = place
        self._first = True
        self._last_arrival = 0.0
        self._received = 0
        """Tokens."""
        self._begins_at = run.received
        """Tokens of the answer before this leg."""
        self._finish_seen = False
        self._max_tokens = run.leg_prompt.max_tokens
        self._reports = not run.machine.uses_prefill and not run.continued
        """What a prefill engine would have told."""
        self._gaps = run.exchange.timing.gaps
        self._histogram = self.services.metrics.inter_token
        self._stream: DecodeStream | None = self.services.decode_client.decode(
            member.url,
            request,
            run.exchange.engine_headers(self.span),
            self._take,
            first_timeout=first_timeout,
        )
        """Until it has ended."""

    async def carry_out(self) -> None:
        run, services = self.run, self.services
        run.exchange.timing.mark("decode_started", perf_counter())
        assert self._stream is not None
        try:
            with self.member.busy():
                await self._stream.run()
        except HopError as error:
            if not self._finish_seen:
                await self._failed(error)
                return
            # The answer is complete; only the end of the stream got lost.
        finally:
            self._stream = None
            if self._place is not None:
                self._place.leave()
        self.span.end()
        services.decode_pool.succeeded(self.member)
        run.items.answered(self.member)
        services.decode_pool.remember(self.member, run.members.affinity)
        run.post(Event.DECODE_ENDED)

    async def _failed(self, error: HopError) -> None:
        run, services = self.run, self.services
        if self._first and run.items.missed(error, self.member, self.leg_id):
            self.span.end(error)
            run.post(run.machine.after_missed_items(), error)
            return
        self.note_failure(services.decode_pool, error)
        continuable = self._continuable(error)
        if continuable and run.pump is not None:
            # A stop string may be in what the client is still to get, and while the run goes on elsewhere
            # nothing may be on its way through derender.
            await run.pump.drained()
        event = run.machine.after_decode_failure(
            retry_safe=error.retry_safe and services.decode_pool.available and self._may_prefill_again(error),
            continuable=continuable,
        )
        run.post(event, error)

    def _may_prefill_again(self, error: HopError) -> bool:
        """A fresh prefill is not spent on an engine that has just said that it fails."""
        return (
            not self.run.machine.uses_prefill
            or not error.answered
            or self.services.settings.policy.retry_lone_decode
            or self.services.decode_pool.elsewhere(self.run.members.tried)
        )

    def _continuable(self, error: HopError) -> bool:
        """Whether another engine could go on where this one failed."""
        return (
            self.services.policy.continuations > 0
            and self.services.decode_pool.available
            and self.run.exchange.streaming
            and not error.client_fault
            and self.run.received < self.run.whole_prompt.max_tokens
            and legs.can_continue(self.run.whole_prompt)
        )

    def _take(self, answer: EngineAnswer) -> None:
        """Raises ``HopError`` for what the engine should not have sent."""
        if self.cancelled:
            return
        if answer.choices:
            self._take_output(answer)
        if answer.usage is not None or self._reports:
            self._take_notes(answer)

    def _take_output(self, answer: EngineAnswer) -> None:
        choice = answer.choices[0]
        token_ids = choice.token_ids or []
        output = Output(
            token_ids,
            choice.logprobs.content if choice.logprobs is not None else None,
            choice.finish_reason,
            choice.stop_reason,
            self._of_the_answer(choice.weight_versions),
        )
        run = self.run
        now = perf_counter()
        if self._first:
            self._first = False
            timing = run.exchange.timing
            timing.decode_member = self.member.url
            timing.mark("first_token", now)
            assert self._stream is not None
            run.first_token(self._stream)
            if self.cancelled:  # there was no client any more, and that was the end
                return
        else:
            gap = now - self._last_arrival
            self._gaps.add(gap)
            self._histogram.observe(gap)
        self._last_arrival = now
        self._received += len(token_ids)
        if self._received > self._max_tokens:
            raise Garbled("decode", "the decode engine sent more tokens than it was asked for")
        if choice.finish_reason is not None:
            self._finish_seen = True
        run.take_output(output)
        if choice.finish_reason is not None and answer.kv_transfer_params is not None:
            run.keep_turn(self.member, answer.kv_transfer_params)

    def _of_the_answer(self, spans: list[WeightVersionSpan] | None) -> list[WeightVersionSpan] | None:
        """An engine counts the tokens of its own output."""
        if spans is None or not self._begins_at:
            return spans
        begin = self._begins_at
        return [WeightVersionSpan(span.version, span.start + begin, span.end + begin) for span in spans]

    def _take_notes(self, answer: EngineAnswer) -> None:
        """What the engine counts; in P/D mode prefill has said what was cached."""
        run, usage = self.run, answer.usage
        reported = usage.completion_tokens if usage is not None else 0
        if not answer.choices and reported > self._received:
            self._finish_seen = False
            raise Garbled("decode", f"the engine has sampled {reported} tokens, {self._received} arrived")
        if not self._reports:
            return
        if usage is not None and usage.cached_tokens is not None:
            run.cached_tokens = usage.cached_tokens
            run.members.compare_cached("decode", self.member, usage.cached_tokens)
        run.prompt_logprobs = present(answer.prompt_logprobs) or run.prompt_logprobs


class FreeingLeg(Leg):
    kind = "free"

    def __init__(self, run: Run, member: Member, leg_id: str, request: Mapping[str, Any]) -> None:
        super().__init__(run, member, leg_id)
        self._stream = self.services.decode_client.decode(
            member.url, request, run.exchange.cleanup_headers(self.span), lambda _answer: None
        )

    async def carry_out(self) -> None:
        try:
            with self.member.busy():
                await self._stream.run()
        except HopError as error:
            self.note_failure(self.services.decode_pool, error)
            self.run.post(Event.DECODE_FAILED, error)
        else:
            self.services.metrics.freed.inc()
            self.run.post(Event.FIRST_TOKEN)
