"""One run carried out: the request machine's effects turned into legs, timers and clean-up.

``post`` is the only way in. It feeds the machine, which changes state at once, and carries out the effects,
none of which waits: whatever takes time is a leg (``prefill_leg``, ``decode_leg``), a timer or a place in a
queue, whose end posts the next event. So a run can be told anything at any moment (client gone, deadline),
and a leg that is cancelled has nothing left to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from orchestrator.core import legs
from orchestrator.core.coalescing import Output
from orchestrator.core.request_machine import RequestMachine
from orchestrator.core.request_table import INITIAL, Effect, Event, State
from orchestrator.core.usage import RunUsage
from orchestrator.hops.errors import HopError, NoMembers, TimedOut, Unreachable
from orchestrator.pool.member import Member
from orchestrator.server.admission import GateName, Place
from orchestrator.server.decode_leg import DecodeLeg, FreeingLeg
from orchestrator.server.held_kv import HeldKv
from orchestrator.server.leg import Leg
from orchestrator.server.output import OutputPump, Source
from orchestrator.server.prefill_leg import AskTurn, PrefillLeg
from orchestrator.server.run_members import RunMembers
from orchestrator.server.spared_items import SparedItems
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
        self.through_prefill = False
        """A prefill engine computes the prompt; otherwise decode does."""
        self.decodes_where_cached = False
        """The prefill leg is left out because a decode member has most of the prompt."""
        services = exchange.services
        self.machine = RequestMachine(services.policy, services.table)
        self.cached_tokens: int | None = None
        self.prompt_logprobs: msgspec.Raw | None = None
        self.kv_params: dict[str, Any] | None = None
        """Of the prefill that has just answered, until they are held."""
        self.members = RunMembers(exchange)
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._posting = False
        self._error: ApiError | None = None
        self._reason = ""
        self._legs_begun = 0
        self._leg: Leg | None = None
        self._place: Place | None = None
        self._decode_member: Member | None = None
        """Chosen for the next decode leg."""
        self._asked_for_turn = False
        self._kv = HeldKv(services)
        self.items = SparedItems(services)
        self._cleanup_timer: asyncio.TimerHandle | None = None
        self._encoded: legs.RenderedPrompt | None = None
        """The prompt with what encoders have made of its images, for the first engine that computes it."""
        self._extended: legs.RenderedPrompt | None = None
        """The prompt of further legs, once the run has gone on after visible output."""
        self._closed = False
        self.pump: OutputPump | None = None
        """When output is derendered as it comes."""
        self._reset_output()
        services.integrity.runs += 1

    def __repr__(self) -> str:
        return f"<Run {self.index} {self.machine!r} {self._kv!r} {self.pump!r}>"

    # ---- events in -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Carry out what a run begins with."""
        for effect in INITIAL.effects:
            _EFFECTS[effect](self)

    def post(self, event: Event, error: ApiError | None = None) -> None:
        """Tell the run what happened. ``error`` is what a client would be told if this ends the run."""
        if error is not None:
            # Where it was raised is nobody's concern, and refers to this run.
            self._error = error.with_traceback(None)
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
        """Something of this run ended in a way nobody foresaw: the client gets an honest 500."""
        log.error("run crashed", run=self.exchange.base_id, exc_info=error)
        self.post(Event.DEADLINE, ApiError(f"internal error ({type(error).__name__})"))

    def member_died(self, member: Member) -> None:
        """A decode engine waits without end for KV that nobody is left to push."""
        if self._kv.holder is member and self._kv.pushed:
            self.members.tried.add(member.url)
            error = Unreachable("prefill", "the prefill engine has died with its KV", member=member.url)
            self.post(self.machine.after_lease_end(), error)

    # ---- what legs look at and report ----------------------------------------------------------------------

    @property
    def whole_prompt(self) -> legs.RenderedPrompt:
        """As render gave it."""
        assert self.prompt is not None
        return self.prompt

    @property
    def leg_prompt(self) -> legs.RenderedPrompt:
        """What engines are given."""
        return self.whole_prompt if self._extended is None else self._extended

    @property
    def continued(self) -> bool:
        """The run has gone on elsewhere after visible output."""
        return self._extended is not None

    @property
    def recalling(self) -> bool:
        return self.machine.state is State.RECALLING

    @property
    def placement(self) -> legs.Placement:
        return self._services.settings.policy.kv_params_placement

    def encoded(self, prompt: legs.RenderedPrompt) -> None:
        """Every image of the prompt has been with encoders, or is left to the engine that gets ``prompt``."""
        self._encoded = prompt if prompt.encodings else None
        self.post(Event.ENCODED if self.through_prefill else Event.ENCODED_DIRECT)

    def first_token(self, source: Source) -> None:
        """Of a decode leg, whose chunks come from ``source``."""
        self.post(self.machine.first_token())
        if self.machine.over:
            return
        if self.pump is not None:
            self.pump.draw_from(source)

    def take_output(self, output: Output) -> None:
        """One chunk of decode."""
        self.received += len(output.token_ids)
        if not self.exchange.streaming:
            self.output.add(output)
            self.usage.completion_tokens = self.received
        elif self._services.policy.continuations:
            self._sent_ids += output.token_ids
        if self.pump is not None:
            self.pump.put(output)

    def keep_turn(self, member: Member, params: dict[str, Any]) -> None:
        """Decode on ``member`` has ended, all of its output has been taken, and it keeps the KV."""
        if self._may_keep_turn(member):
            kept, tenant = self._services.kept_turns, self.exchange.who.tenant
            keeping = kept.keep(tenant, member, self.whole_prompt, self.output.token_ids, params)
            self._services.supervisor.spawn(keeping, f"keep turn {self.exchange.base_id}")

    # ---- effects -------------------------------------------------------------------------------------------

    def _start_render(self) -> None:
        self.exchange.start_render(self)

    def _start_encode(self) -> None:
        self.exchange.encoding(self.whole_prompt).join(self)

    def _leave_encode(self) -> None:
        self.exchange.encoding(self.whole_prompt).leave(self)

    def _start_prefill(self) -> None:
        self._cancel_leg()
        if self.machine.prefill_attempts > 1 or self.machine.decode_attempts:
            self._services.metrics.retries.labels("prefill").inc()
            self.exchange.timing.restart_legs()
        self._wait_for_place("prefill", self._prefill_admitted, Event.PREFILL_FAILED)

    def _prefill_admitted(self) -> None:
        member = self.members.for_prefill(anew=self._anew)
        if member is None and self._encoded is not None:
            # Of another generation than the encoders, and able to compute the images by itself.
            self._encoded = None
            member = self.members.for_prefill(anew=self._anew)
        if member is None:
            nobody = NoMembers("prefill", "no prefill engine is available")
            self.post(self.machine.after_unusable_prefill(), nobody)
            return
        prompt = self.items.for_engine(self._prompt_to_compute(), member)
        turn = self._earlier_turn(member)
        self._begin(PrefillLeg(self, member, self._new_id("p"), prompt, self._place, turn))
        self._prepare_output()

    @property
    def _anew(self) -> bool:
        """Nothing of the request depends on what engines have done so far."""
        return len(self.exchange.runs) == 1 and not self.continued and self._encoded is None

    def _prompt_to_compute(self) -> legs.RenderedPrompt:
        """What encoders have made is for one engine: what is tried again after a failure goes without."""
        encoded, self._encoded = self._encoded, None
        return encoded or self.leg_prompt

    def _hold_kv(self) -> None:
        params, self.kv_params = self.kv_params, None
        assert params is not None
        assert self._leg is not None
        self._kv.hold(params, self._leg.member, self._leg.leg_id, self._lease_ended)

    def _kv_consumed(self) -> None:
        self._kv.settle()

    def _kv_stranded(self) -> None:
        if self._kv.settle():
            self._services.note_stranded(self._reason, len(self.leg_prompt.token_ids))

    def _choose_decode(self) -> None:
        self._cancel_leg()
        self._wait_for_place("decode", self._decode_admitted, Event.DECODE_FAILED)

    def _decode_admitted(self) -> None:
        self._decode_member = self.members.for_decode(
            self._kv.holder,
            anew=self._anew,
            policy="prefix_affinity" if self.decodes_where_cached else None,
            finishing=self._kv.held or self.continued,
        )
        if self._decode_member is None:
            nobody = NoMembers("decode", "no decode engine is available")
            # Others would need KV of their own: what is held is worth as much as after its lease.
            elsewhere = self._kv.held and self._services.decode_pool.available
            self.post(self.machine.after_lease_end() if elsewhere else Event.DECODE_FAILED, nobody)
            return
        self.post(Event.DECODE_ADMITTED)

    def _start_decode(self) -> None:
        member = self._decode_member
        assert member is not None
        prompt = self.leg_prompt if self.machine.uses_prefill else self._prompt_to_compute()
        prompt = self.items.for_engine(prompt, member)
        if self.machine.decode_attempts > 1:
            self._services.metrics.retries.labels("decode").inc()
        if self._services.settings.lease.renewed_by_decode:
            self._kv.stop_timer()
        kv_params, leg_id = self._kv.take_params(self._new_id("d"))
        whole = prompt.wants_prompt_logprobs and not self.machine.uses_prefill
        # Engines tell what they keep of a turn in whole answers only, which take as long as the request may.
        keeps = kv_params is not None and self._may_keep_turn(member)
        request = legs.decode_leg(
            prompt, leg_id, self.choice, kv_params, self.placement, whole=whole or keeps
        )
        patience = self._services.settings.timeouts.request if keeps else None
        self._begin(DecodeLeg(self, member, leg_id, request, self._place, patience))
        self._prepare_output()

    def _start_freeing(self) -> None:
        """Goes ahead of whoever waits for a place: it is short, and what it frees is needed."""
        self._cancel_leg()
        self._kv.stop_timer()
        holder = self._kv.holder
        assert holder is not None
        kv_params, leg_id = self._kv.take_params(self._new_id("f"))
        member = self.members.for_freeing(holder)
        if member is None or kv_params is None:
            self.post(Event.DECODE_FAILED)
            return
        request = legs.freeing_leg(self.leg_prompt, leg_id, kv_params, self.placement)
        self._begin(FreeingLeg(self, member, leg_id, request))

    def _abort_prefill(self) -> None:
        """The connection stays open: the answer says whether the engine holds KV after all."""
        leg = self._leg
        if leg is None:
            self._cancel_leg()
            self.post(Event.PREFILL_FAILED)
            return
        self._services.abort_soon("prefill", leg.member.url, leg.leg_id, self._abort_not_heard)

    def _abort_not_heard(self) -> None:
        """What is left is to close the connection."""
        if self.recalling:
            self.post(Event.PREFILL_FAILED)

    def _abort_decode(self) -> None:
        leg = self._leg
        self._cancel_leg()
        if leg is not None:
            self._services.abort_soon("decode", leg.member.url, leg.leg_id)

    def _reset_output(self) -> None:
        self._end_pump()
        self.received = 0
        """Tokens, of all legs whose output counts."""
        self._sent_ids: list[int] = []
        """What decode has sent, kept where the run may go on elsewhere."""
        self.flushed = False
        self.output = Output()
        """Everything decode has sent in this attempt; kept only for whole answers and records."""
        self.chunk_lens: list[int] = []
        """Tokens of each chunk that derender has read; kept only for records."""
        self.usage = RunUsage()

    def _extend_prompt(self) -> None:
        self._services.metrics.continuations.inc()
        self._extended = legs.continued(self.whole_prompt, self._sent_ids)

    def _flush(self) -> None:
        if self.pump is not None:
            self.pump.finish()
        else:
            self._flushed()

    def _flushed(self) -> None:
        """The run is at its end, unless something is left to do for all of them: a whole answer is derendered
        when all its runs have come here."""
        self.flushed = True
        if self.exchange.ends_with_runs:
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

    # ---- small parts ---------------------------------------------------------------------------------------

    def _earlier_turn(self, member: Member) -> AskTurn | None:
        """Asked for once, by the first choice: further ones find the prompt in the engine's cache."""
        if self._asked_for_turn or self.choice:
            return None
        self._asked_for_turn = True
        return partial(self._services.kept_turns.take, self.exchange.who.tenant, member, self.leg_prompt)

    def _may_keep_turn(self, member: Member) -> bool:
        """Not what is looked at as it comes."""
        if self.exchange.needs_chunks(self.whole_prompt):
            return False
        return self._services.kept_turns.kept_by(member) > 0

    def _prepare_output(self) -> None:
        """Derender reads the request while the engines work."""
        if self.pump is not None or not self.exchange.needs_chunks(self.whole_prompt):
            return
        pump = OutputPump(
            self.exchange,
            self.usage,
            on_visible=partial(self.post, Event.VISIBLE),
            on_stop_matched=self._stop_matched,
            on_flushed=self._flushed,
            on_failed=self._derender_failed,
        )
        pump.through(self.exchange.reader(self, pump))
        self.pump = pump

    def _derender_failed(self, error: HopError) -> None:
        self.post(Event.DERENDER_FAILED, error)

    def _stop_matched(self) -> None:
        if not self.exchange.streaming:
            self.output.finish_reason, self.output.stop_reason = "stop", None
        if self.machine.state is not State.FINISHING:
            self.post(Event.STOP_MATCHED)

    def _new_id(self, kind: str) -> str:
        """A fresh id: engines confuse requests that share one, and an abort hits all of them."""
        self._legs_begun += 1
        return f"{self.exchange.base_id}-{self.index}{kind}{self._legs_begun}"

    def _begin(self, leg: Leg) -> None:
        self._leg = leg
        leg.start()

    def _wait_for_place(self, gate: GateName, on_in: Callable[[], None], refused: Event) -> None:
        self._place = self._services.admission.place(gate, self.exchange.who)
        self._place.enter(on_in, partial(self.post, refused))

    def _lease_ended(self) -> None:
        error = TimedOut("decode", "prefilled KV expired before decode could use it")
        if self.machine.state is State.DECODING and self._leg is not None:
            self.members.tried.add(self._leg.member.url)
        self.post(self.machine.after_lease_end(), error)

    def _cancel_leg(self) -> None:
        """And leave its place, or the queue for one."""
        if self._place is not None:
            self._place.leave()
            self._place = None
        if self._leg is not None:
            self._leg.cancel()
            self._leg = None

    def _end_pump(self) -> None:
        if self.pump is not None:
            self.pump.close()
            self.pump = None

    def _close(self) -> None:
        """Once, when the machine has reached a terminal state."""
        if self._closed:
            return
        self._closed = True
        self._cancel_leg()
        self._end_pump()
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()
        self._services.integrity.runs -= 1
        self.exchange.run_over()


_EFFECTS: Final[dict[Effect, Callable[[Run], None]]] = {
    Effect.START_RENDER: Run._start_render,
    Effect.START_ENCODE: Run._start_encode,
    Effect.LEAVE_ENCODE: Run._leave_encode,
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
