"""One run carried out: the request machine's effects turned into hops, timers and clean-up.

``post`` is the only way in. It feeds the machine, which changes state at once, and carries out the effects,
none of which waits: whatever takes time becomes a task or a timer whose end posts the next event. So a run
can be told anything at any moment (client gone, deadline), and a task that is cancelled has nothing left to
do.

Two tasks work on a decode leg: the reader of the engine's stream, and the ``OutputPump`` that it feeds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import structlog

from orchestrator.core import legs
from orchestrator.core.coalescing import Output
from orchestrator.core.kv_params import lease_seconds, unusable
from orchestrator.core.request_machine import INITIAL, Effect, Event, RequestMachine, State
from orchestrator.core.selection import Affinity, Decision, PolicyName
from orchestrator.core.usage import RunUsage
from orchestrator.hops.errors import Failed, Garbled, HopError, NoMembers, TimedOut
from orchestrator.hops.messages import EngineAnswer, present
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.admission import GateName, Place
from orchestrator.server.output import OutputPump
from render_tier.protocol.errors import ApiError

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange

log = structlog.get_logger(__name__)


class Run:
    """Choice ``choice`` of one prompt; ``index`` is its place among all choices of the answer."""

    def __init__(self, exchange: Exchange, index: int, choice: int) -> None:
        self.exchange = exchange
        self.index = index
        self.choice = choice
        self.prompt: legs.RenderedPrompt | None = None
        self.affinity = Affinity()
        self.decodes_where_cached = False
        """The prefill leg is left out because a decode member has most of the prompt."""
        services = exchange.services
        self.machine = RequestMachine(services.policy, services.table)
        self.output = Output()
        """Everything decode has sent in this attempt; kept only for whole answers."""
        self.usage = RunUsage()
        self.cached_tokens: int | None = None
        self.prompt_logprobs: msgspec.Raw | None = None
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._posting = False
        self._error: ApiError | None = None
        self._reason = ""
        self._leg = 0
        self._leg_id = ""
        self._member: Member | None = None
        self._tried: set[str] = set()
        self._predicted: dict[str, int] = {}
        self._hop: asyncio.Task[None] | None = None
        self._place: Place | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._lease_timer: asyncio.TimerHandle | None = None
        self._cleanup_timer: asyncio.TimerHandle | None = None
        self._held = False
        self._kv_params: dict[str, Any] | None = None
        self._extended: legs.RenderedPrompt | None = None
        """The prompt of further legs, once the run has gone on after visible output."""
        self._closed = False
        self._reset_output()
        services.integrity.runs += 1

    def __repr__(self) -> str:
        return f"<Run {self.index} {self.machine!r} held={self._held} {self.pump!r}>"

    # ---- events in -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Carry out what a run begins with."""
        for effect in INITIAL.effects:
            _EFFECTS[effect](self)

    def post(self, event: Event, error: ApiError | None = None) -> None:
        """Tell the run what happened. ``error`` is what a client would be told if this ends the run."""
        if error is not None:
            self._error = error
        self._events.append(event)
        if self._posting:
            return
        self._posting = True
        try:
            while self._events:
                event = self._events.popleft()
                self._reason = event.value
                for effect in self.machine.feed(event):
                    _EFFECTS[effect](self)
        finally:
            self._posting = False
            self._events.clear()
            if self.machine.over:
                self._close()

    def crashed(self, error: Exception) -> None:
        """A task of this run ended in a way nobody foresaw: the client gets an honest 500."""
        self.post(Event.DEADLINE, ApiError(f"internal error ({type(error).__name__})"))

    # ---- effects -------------------------------------------------------------------------------------------

    def _start_render(self) -> None:
        self.exchange.start_render(self)

    def _start_prefill(self) -> None:
        self._cancel_hop()
        if self.machine.prefill_attempts > 1 or self.machine.decode_attempts:
            self._services.metrics.retries.labels("prefill").inc()
            self.exchange.timing.restart_legs()
        self._wait_for_place("prefill", self._prefill_admitted, Event.PREFILL_FAILED)

    def _prefill_admitted(self) -> None:
        member = self._services.prefill_pool.choose(self._tried, self.affinity, record=self._record)
        if member is None:
            nobody = NoMembers("prefill", "no prefill engine is available")
            self.post(self.machine.after_unusable_prefill(), nobody)
            return
        leg_id = self._new_leg(member, "p")
        self._hop = self._spawn(self._prefill(member, leg_id, self._place), f"prefill {leg_id}")

    def _hold_kv(self) -> None:
        assert self._kv_params is not None
        self._held = True
        self._services.integrity.leases += 1
        seconds = self._lease_seconds(self._kv_params)
        self._lease_timer = self._loop.call_later(seconds, self._lease_ended)

    def _kv_consumed(self) -> None:
        self._settle_lease()

    def _kv_stranded(self) -> None:
        if self._settle_lease():
            self._services.note_stranded(self._reason, len(self._leg_prompt.token_ids))

    def _choose_decode(self) -> None:
        self._cancel_hop()
        self._wait_for_place("decode", self._decode_admitted, Event.DECODE_FAILED)

    def _decode_admitted(self) -> None:
        policy: PolicyName | None = "prefix_affinity" if self.decodes_where_cached else None
        self._member = self._services.decode_pool.choose(
            self._tried, self.affinity, policy=policy, record=self._record
        )
        if self._member is None:
            self.post(Event.DECODE_FAILED, NoMembers("decode", "no decode engine is available"))
            return
        self.post(Event.DECODE_ADMITTED)

    def _start_decode(self) -> None:
        member, prompt = self._member, self._leg_prompt
        assert member is not None
        if self.machine.decode_attempts > 1:
            self._services.metrics.retries.labels("decode").inc()
        if self._services.settings.lease.renewed_by_decode:
            self._stop_lease_timer()
        leg_id = self._new_leg(member, "d")
        # Taken out, so that nothing can send them a second time.
        kv_params, self._kv_params = self._kv_params, None
        whole = prompt.wants_prompt_logprobs and not self.machine.uses_prefill
        request = legs.decode_leg(prompt, leg_id, self.choice, kv_params, self._placement, whole=whole)
        self._hop = self._spawn(self._decode(member, request, self._place), f"decode {leg_id}")

    def _start_freeing(self) -> None:
        """Goes ahead of whoever waits for a place: it is short, and what it frees is needed."""
        self._cancel_hop()
        self._stop_lease_timer()
        kv_params, self._kv_params = self._kv_params, None
        member = self._services.decode_pool.choose(self._tried)
        if member is None or kv_params is None:
            self.post(Event.DECODE_FAILED)
            return
        leg_id = self._new_leg(member, "f")
        request = legs.freeing_leg(self._leg_prompt, leg_id, kv_params, self._placement)
        self._hop = self._spawn(self._free(member, request), f"free {leg_id}")

    def _abort_prefill(self) -> None:
        """The connection stays open: the answer says whether the engine holds KV after all."""
        if self._hop is None or self._member is None:
            self._cancel_hop()
            self.post(Event.PREFILL_FAILED)
            return
        self._services.abort_soon("prefill", self._member.url, self._leg_id, self._abort_not_heard)

    def _abort_not_heard(self) -> None:
        """What is left is to close the connection."""
        if self._recalling:
            self.post(Event.PREFILL_FAILED)

    def _abort_decode(self) -> None:
        member, on_its_way = self._member, self._hop is not None
        self._cancel_hop()
        if on_its_way and member is not None:
            self._services.abort_soon("decode", member.url, self._leg_id)

    def _reset_output(self) -> None:
        self._cancel_pump()
        self.pump: OutputPump | None = None
        """From the first token on, when output is derendered as it comes."""
        self._first = True
        self._last_arrival = 0.0
        self._received = 0
        self._leg_received = 0
        """Of the present decode leg."""
        self._sent_ids: list[int] = []
        """What decode has sent, kept where the run may go on elsewhere."""
        self._finish_seen = False
        self.flushed = False
        self.output = Output()
        self.usage = RunUsage()

    def _extend_prompt(self) -> None:
        self._services.metrics.continuations.inc()
        self._extended = legs.continued(self._prompt, self._sent_ids)
        self._first = True
        self._leg_received = 0

    def _flush(self) -> None:
        if self.pump is not None:
            self.pump.finish()
        else:
            self._flushed()

    def _flushed(self) -> None:
        """A stream's run is at its end; a whole answer is derendered when all its runs have come here."""
        self.flushed = True
        if self.exchange.streaming:
            self.post(Event.FLUSHED)
        else:
            self.exchange.run_flushed()

    def _count_recompute(self) -> None:
        self._services.metrics.recomputes.inc()
        log.warning("prefill gave nothing usable; decode computes the prompt", run=self.exchange.base_id)

    def _arm_cleanup(self) -> None:
        seconds = self._services.settings.timeouts.cleanup
        self._cleanup_timer = self._loop.call_later(seconds, self.post, Event.CLEANUP_TIMEOUT)

    def _complete(self) -> None:
        self.exchange.run_completed()

    def _fail(self) -> None:
        self.exchange.fail(self._error or ApiError("the request failed"))

    # ---- hops ----------------------------------------------------------------------------------------------

    async def _prefill(self, member: Member, leg_id: str, place: Place | None) -> None:
        exchange, timing = self.exchange, self.exchange.timing
        timing.mark("prefill_started", perf_counter())
        request = legs.prefill_leg(self._leg_prompt, leg_id, self._placement)
        try:
            with member.busy():
                answer = await self._services.prefill_client.prefill(
                    member.url,
                    request,
                    exchange.engine_headers(self._services.settings.timeouts.prefill),
                    # Not what is left of the request: an answer that comes while the leg is being aborted
                    # is still of interest.
                    self._services.settings.timeouts.prefill,
                )
        except HopError as error:
            if not self._recalling:
                self._note_failure(self._services.prefill_pool, member, error)
                if isinstance(error, TimedOut):
                    self._services.abort_soon("prefill", member.url, leg_id)
            event = self.machine.after_prefill_failure(
                retry_safe=error.retry_safe and self._services.prefill_pool.available,
                client_fault=error.client_fault,
            )
            self.post(event, error)
            return
        finally:
            _leave(place)
        self._services.prefill_pool.succeeded(member)
        problem = unusable(answer.finish_reason, answer.kv_params, len(self._leg_prompt.token_ids), leg_id)
        if problem is None and answer.kv_params is not None:
            if self._lease_seconds(answer.kv_params) <= 0:
                problem = "the lease had ended when the params arrived"
            elif not self._services.used_params.claim(answer.kv_params):
                problem = "these params have been used before"
        if problem is not None:
            if not self._recalling:
                self._services.metrics.unusable_prefills.inc()
                log.warning("unusable prefill", member=member.url, leg=leg_id, problem=problem)
            useless = Failed("prefill", "the prefill engine kept no KV for decode", detail=problem)
            self.post(self.machine.after_unusable_prefill(), useless)
            return
        self._compare_cached("prefill", member, answer.cached_tokens)
        self._services.prefill_pool.remember(member, self.affinity)
        timing.mark("prefilled", perf_counter())
        timing.prefill_member = member.url
        if self._extended is None:
            self.cached_tokens = answer.cached_tokens
            self.prompt_logprobs = answer.prompt_logprobs
        self._kv_params = answer.kv_params
        self.post(self.machine.prefilled())

    async def _decode(self, member: Member, request: dict[str, Any], place: Place | None) -> None:
        timing = self.exchange.timing
        timing.mark("decode_started", perf_counter())
        answers = self._services.decode_client.decode(member.url, request, self.exchange.engine_headers())
        try:
            with member.busy():
                async with aclosing(answers):
                    async for answer in answers:
                        if answer.choices:
                            timing.decode_member = member.url
                            await self._take(answer)
                        self._take_notes(member, answer)
        except HopError as error:
            if not self._finish_seen:
                self._note_failure(self._services.decode_pool, member, error)
                continuable = self._continuable(error)
                if continuable and self.pump is not None:
                    # A stop string may be in what the client is still to get, and while the run goes on
                    # elsewhere nothing may be on its way through derender.
                    await self.pump.drained()
                event = self.machine.after_decode_failure(
                    retry_safe=error.retry_safe and self._services.decode_pool.available,
                    continuable=continuable,
                )
                self.post(event, error)
                return
            # The answer is complete; only the end of the stream got lost.
        finally:
            _leave(place)
        self._services.decode_pool.succeeded(member)
        self._services.decode_pool.remember(member, self.affinity)
        self.post(Event.DECODE_ENDED)

    async def _take(self, answer: EngineAnswer) -> None:
        """Account for one engine chunk, and wait while too much is pending."""
        choice = answer.choices[0]
        output = Output(
            token_ids=choice.token_ids or [],
            logprobs=choice.logprobs.content if choice.logprobs else None,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
        now = perf_counter()
        if self._first:
            self._first = False
            self.exchange.timing.mark("first_token", now)
            self.post(self.machine.first_token())
            # Without a client (draining) that was the end: this task is being cancelled.
            await asyncio.sleep(0)
            if self.pump is None and self.exchange.needs_chunks(self._prompt):
                self._start_pump()
        else:
            gap = now - self._last_arrival
            self.exchange.timing.gaps.add(gap)
            self._services.metrics.inter_token.observe(gap)
        self._last_arrival = now
        self._received += len(output.token_ids)
        self._leg_received += len(output.token_ids)
        if self._services.policy.continuations and self.exchange.streaming:
            self._sent_ids += output.token_ids
        if self._received > self._prompt.max_tokens:
            raise Garbled("decode", "the decode engine sent more tokens than it was asked for")
        self._finish_seen = self._finish_seen or output.finish_reason is not None
        if not self.exchange.streaming:
            self.output.add(output)
            self.usage.completion_tokens = self._received
        if self.pump is not None:
            await self.pump.put(output)

    def _start_pump(self) -> None:
        self.pump = OutputPump(
            self.exchange,
            self.index,
            self._prompt,
            self.usage,
            on_visible=partial(self.post, Event.VISIBLE),
            on_stop_matched=self._stop_matched,
        )
        self._pump_task = self._spawn(self._pump_output(self.pump), f"pump {self._leg_id}")

    def _take_notes(self, member: Member, answer: EngineAnswer) -> None:
        """What a colocated engine reports beside tokens; in P/D mode prefill has said it."""
        reported = answer.usage.completion_tokens if answer.usage is not None else 0
        if not answer.choices and reported > self._leg_received:
            self._finish_seen = False
            raise Garbled("decode", f"the engine has sampled {reported} tokens, {self._leg_received} arrived")
        if self.machine.uses_prefill or self._extended is not None:
            return
        if answer.usage is not None and answer.usage.cached_tokens is not None:
            self.cached_tokens = answer.usage.cached_tokens
            self._compare_cached("decode", member, answer.usage.cached_tokens)
        self.prompt_logprobs = present(answer.prompt_logprobs) or self.prompt_logprobs

    async def _free(self, member: Member, request: dict[str, Any]) -> None:
        try:
            with member.busy():
                answers = self._services.decode_client.decode(
                    member.url, request, self.exchange.cleanup_headers()
                )
                async with aclosing(answers):
                    async for _answer in answers:
                        pass
        except HopError as error:
            self._note_failure(self._services.decode_pool, member, error)
            self.post(Event.DECODE_FAILED, error)
        else:
            self._services.metrics.freed.inc()
            self.post(Event.FIRST_TOKEN)

    async def _pump_output(self, pump: OutputPump) -> None:
        try:
            await pump.run()
        except HopError as error:
            self.post(Event.DERENDER_FAILED, error)
        else:
            self._flushed()

    def _stop_matched(self) -> None:
        if not self.exchange.streaming:
            self.output.finish_reason, self.output.stop_reason = "stop", None
        if self.machine.state is not State.FINISHING:
            self.post(Event.STOP_MATCHED)

    # ---- small parts ---------------------------------------------------------------------------------------

    @property
    def _prompt(self) -> legs.RenderedPrompt:
        assert self.prompt is not None
        return self.prompt

    @property
    def _recalling(self) -> bool:
        return self.machine.state is State.RECALLING

    @property
    def _leg_prompt(self) -> legs.RenderedPrompt:
        """What engines are given."""
        return self._prompt if self._extended is None else self._extended

    def _continuable(self, error: HopError) -> bool:
        """Whether another engine could go on where this one failed."""
        return (
            self._services.policy.continuations > 0
            and self._services.decode_pool.available
            and self.exchange.streaming
            and not error.client_fault
            and self._received < self._prompt.max_tokens
            and legs.can_continue(self._prompt)
        )

    @property
    def _placement(self) -> legs.Placement:
        return self._services.settings.policy.kv_params_placement

    def _new_leg(self, member: Member, kind: str) -> str:
        """A fresh id: engines confuse requests that share one, and an abort hits all of them."""
        self._leg += 1
        self._leg_id = f"{self.exchange.base_id}-{self.index}{kind}{self._leg}"
        self._member = member
        return self._leg_id

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        return self._services.supervisor.spawn(work, name, self.crashed)

    def _record(self, role: str, decision: Decision) -> None:
        self._predicted[role] = decision.winner.cached_blocks
        self.exchange.note_decision(role, decision)

    def _compare_cached(
        self, role: Literal["prefill", "decode"], member: Member, reported: int | None
    ) -> None:
        services = self._services
        predicted = self._predicted.get(role, 0) * services.settings.selection.prefix_block_tokens
        pool = services.prefill_pool if role == "prefill" else services.decode_pool
        services.compare_cached(pool, member, predicted, reported)

    def _wait_for_place(self, gate: GateName, on_in: Callable[[], None], refused: Event) -> None:
        self._place = self._services.admission.place(gate, self.exchange.who)
        self._place.enter(on_in, partial(self.post, refused))

    def _note_failure(self, pool: Pool, member: Member, error: HopError) -> None:
        """And prefer other members from now on."""
        self._services.note_failure(pool, member, error, self._leg_id)
        self._tried.add(member.url)

    def _lease_ended(self) -> None:
        error = TimedOut("decode", "prefilled KV expired before decode could use it")
        if self.machine.state is State.DECODING and self._member is not None:
            self._tried.add(self._member.url)
        self.post(self.machine.after_lease_end(), error)

    def _lease_seconds(self, params: dict[str, Any]) -> float:
        lease = self._services.settings.lease
        return lease_seconds(
            params, now=time.time(), configured=lease.engine_seconds, fraction=lease.fraction
        )

    def _stop_lease_timer(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None

    def _settle_lease(self) -> bool:
        """Whether there was one."""
        self._stop_lease_timer()
        self._kv_params = None
        held, self._held = self._held, False
        if held:
            self._services.integrity.leases -= 1
        return held

    def _cancel_hop(self) -> None:
        """And leave its place, or the queue for one."""
        _leave(self._place)
        self._place = None
        if self._hop is not None and not self._hop.done():
            self._hop.cancel()
        self._hop = None

    def _cancel_pump(self) -> None:
        if self._pump_task is not None and not self._pump_task.done():
            self._pump_task.cancel()
        self._pump_task = None

    def _close(self) -> None:
        """Once, when the machine has reached a terminal state."""
        if self._closed:
            return
        self._closed = True
        self._cancel_hop()
        self._cancel_pump()
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()
        self._services.integrity.runs -= 1
        self.exchange.run_over()


def _leave(place: Place | None) -> None:
    if place is not None:
        place.leave()


_EFFECTS: Final[dict[Effect, Callable[[Run], None]]] = {
    Effect.START_RENDER: Run._start_render,
    Effect.START_PREFILL: Run._start_prefill,
    Effect.HOLD_KV: Run._hold_kv,
    Effect.KV_CONSUMED: Run._kv_consumed,
    Effect.KV_STRANDED: Run._kv_stranded,
    Effect.CHOOSE_DECODE: Run._choose_decode,
    Effect.START_DECODE: Run._start_decode,
    Effect.START_FREEING: Run._start_freeing,
    Effect.ABORT_PREFILL: Run._abort_prefill,
    Effect.ABORT_DECODE: Run._abort_decode,
    Effect.RESET_OUTPUT: Run._reset_output,
    Effect.EXTEND_PROMPT: Run._extend_prompt,
    Effect.FLUSH: Run._flush,
    Effect.COUNT_RECOMPUTE: Run._count_recompute,
    Effect.ARM_CLEANUP: Run._arm_cleanup,
    Effect.COMPLETE: Run._complete,
    Effect.FAIL: Run._fail,
}
