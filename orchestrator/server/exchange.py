"""One client request from its body to the end of its answer: one render, then one run per choice, then
assembly.

Runs carry the engine work; this object holds what they share (ids, deadline, headers, timing), plans them
when render has answered, merges their output into the client's ``Outbox``, and turns the first failure of any
of them into the one error that the client gets.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any, Final

import msgspec

from orchestrator.core import legs
from orchestrator.core.assembly import with_fields
from orchestrator.core.deadline import TIMEOUT_HEADER, deadline
from orchestrator.core.dialects import dialect_of
from orchestrator.core.generation import Generation
from orchestrator.core.request_table import Event
from orchestrator.core.selection import Decision
from orchestrator.core.timing import Timing
from orchestrator.core.usage import RunUsage
from orchestrator.hops.errors import HopError
from orchestrator.hops.render import FINGERPRINT_HEADER, PATHS, Rendered
from orchestrator.pool.member import Member
from orchestrator.server.attempts import on_render_members
from orchestrator.server.client_answer import ClientAnswer
from orchestrator.server.derender_stream import DerenderStream
from orchestrator.server.encoding import Encoding
from orchestrator.server.intake import ClientRequest
from orchestrator.server.outbox import Outbox
from orchestrator.server.outcomes import Outcome, outcome_of
from orchestrator.server.output import OutputPump, Reader
from orchestrator.server.planning import (
    goes_through_prefill,
    goes_to_encoders,
    require_memory,
    require_servable,
)
from orchestrator.server.recording import Recording
from orchestrator.server.rendering import Rendering
from orchestrator.server.reports import report
from orchestrator.server.run import Run
from orchestrator.server.services import Services
from orchestrator.server.tracing import Span
from render_tier.protocol.errors import ApiError, GatewayTimeout, Unavailable

NOTED_DECISIONS: Final = 32
"""Of one request; what its header and its log line can hold."""


class Exchange:
    def __init__(self, services: Services, request: ClientRequest, public_id: str | None = None) -> None:
        """Counts as in flight from here until every run is over. ``public_id``: what the client calls its
        answer, where the API lets it."""
        self.services = services
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.base_id = secrets.token_hex(12)
        self.runs = [Run(self, 0, 0)]
        dialect = dialect_of(request.endpoint)
        response_id = dialect.id_prefix + (public_id or self.base_id)
        self.answer = ClientAnswer(request, response_id, dialect, self.runs)
        self._forwarded = request.forwarded
        self._conversation = services.conversations.of(request.continues, request.who.tenant, request.model)
        self._rendering = Rendering(request.body, request.session, self._conversation)
        self.span = services.tracing.request(
            PATHS[request.endpoint],
            request.forwarded,
            response_id=response_id,
            model=request.model or "",
            client_id=request.client_id or "",
        )
        self.render_headers = {**request.render_headers, "X-Request-Id": self.base_id}
        # The loop's own clock counts whole milliseconds under uvloop.
        self.timing = Timing(perf_counter())
        self.streaming = False
        self.outbox = Outbox(services.settings.limits.pending_frames)
        self.who = request.who
        self.generation = Generation()
        self.decisions: list[tuple[str, Decision]] = []
        """By role, in the order they were made; derender's, one per chunk, are left out."""
        self._request = request
        self._place = services.admission.place("requests", request.who)
        self._features_bytes = 0
        self._encodings: dict[int, Encoding] = {}
        """By the prompt's identity."""
        self._render_task: asyncio.Task[None] | None = None
        self._last_task: asyncio.Task[None] | None = None
        self._open_runs = 1
        self._completed_runs = 0
        self._outcome: Outcome | None = None
        self._error: ApiError | None = None
        self._deadline = deadline(now, request.timeout, services.settings.timeouts.request)
        self._deadline_timer = self._loop.call_at(self._deadline.at, self._time_is_over)
        services.integrity.in_flight += 1
        services.exchanges.add(self)

    def __repr__(self) -> str:
        return f"<Exchange {self.answer.response_id} {self._outcome or 'open'} {self.runs!r} {self.outbox!r}>"

    def start(self) -> None:
        self.runs[0].start()

    def budget(self, limit: float) -> float:
        """Seconds that a hop with this ``limit`` of its own may take."""
        return self._deadline.budget(self._loop.time(), limit)

    def engine_headers(self, span: Span, limit: float | None = None) -> dict[str, str]:
        """For a leg that starts now and may take ``limit`` seconds, or what is left of the request."""
        return self._headers(self._forwarded, span, self.budget(limit or inf))

    def call_headers(self, span: Span, budget: float) -> dict[str, str]:
        """For a call of the render tier."""
        return self._headers(self.render_headers, span, budget)

    def cleanup_headers(self, span: Span) -> dict[str, str]:
        """For a leg that cleans up, whose time does not depend on the request's."""
        return self._headers(self._forwarded, span, self.services.settings.timeouts.cleanup)

    def _headers(self, base: Mapping[str, str], span: Span, budget: float) -> dict[str, str]:
        return {**base, **span.carrier, TIMEOUT_HEADER: f"{budget:.3f}"}

    def may_derender(self, member: Member) -> bool:
        return self.generation.renders(member.generation)

    def needs_chunks(self, prompt: legs.RenderedPrompt) -> bool:
        """Whether output is derendered as it comes: for the client, or to find a stop string in time."""
        return self.streaming or prompt.has_stop_strings

    # ---- events from outside -------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """The client has disconnected, or its handler is over. Does nothing once every run is over."""
        self.outbox.close()
        if self._outcome is None:
            self._outcome = "client_gone"
        self._post_all(Event.CLIENT_GONE)

    def shut_down(self) -> None:
        self._post_all(Event.DEADLINE, Unavailable("the server is shutting down"))

    def member_died(self, member: Member) -> None:
        for run in list(self.runs):
            run.member_died(member)

    def _time_is_over(self) -> None:
        self._post_all(Event.DEADLINE, GatewayTimeout("the request took too long"))

    def _post_all(self, event: Event, error: ApiError | None = None) -> None:
        for run in list(self.runs):
            run.post(event, error)

    # ---- render and plan -----------------------------------------------------------------------------------

    def start_render(self, run: Run) -> None:
        self._render_task = self.services.supervisor.spawn(
            self._render(run), f"render {self.base_id}", run.crashed
        )

    async def _render(self, run: Run) -> None:
        ended = await self._rendering.attempt(self)
        if isinstance(ended, Rendered):
            self.timing.mark("rendered", perf_counter())
            self._begin_runs(run, ended)
        else:
            run.post(*ended)

    async def enter(self) -> None:
        """Wait for a place. Raises ``ApiError``."""
        self.services.deployment.require_decode()
        self.services.admission.require_room()
        await self._place.wait()

    def _begin_runs(self, run: Run, rendered: Rendered) -> None:
        """``run`` is the first, there before it was known how many."""
        try:
            self._plan(rendered)
            self.services.deployment.require_decode()
            self.services.admission.require_room()
        except ApiError as error:
            run.post(Event.RENDER_FAILED, error)
            return
        for each in list(self.runs):
            # The first run's failure (no members, say) ends the others before they begin.
            if not each.machine.over:
                each.through_prefill = goes_through_prefill(self.services, each)
                if goes_to_encoders(self.services, each):
                    each.post(Event.RENDERED_TO_ENCODE)
                else:
                    each.post(Event.RENDERED if each.through_prefill else Event.RENDERED_DIRECT)

    def encoding(self, prompt: legs.RenderedPrompt) -> Encoding:
        """Of a prompt whose images go to encoders; one for all its runs."""
        found = self._encodings.get(id(prompt))
        if found is None:
            found = self._encodings[id(prompt)] = Encoding(self, prompt)
        return found

    def _plan(self, rendered: Rendered) -> None:
        """Check what render made of the request, before any engine sees it, and lay out the runs.

        Raises ``ApiError``.
        """
        access, prompts = self._request.access, [legs.named_apart(prompt) for prompt in rendered.prompts]
        if access is not None:
            prompts = [access.granted(prompt) for prompt in prompts]
        self.answer.rendered(prompts)
        require_servable(self.services, prompts)
        size = sum(prompt.features_bytes for prompt in prompts)
        require_memory(self.services, size)
        self._features_bytes = size
        self.services.integrity.features_bytes += size
        if self._conversation is not None:
            self._conversation.rendered(prompts[0])
        self.streaming = prompts[0].stream
        if rendered.fingerprint is not None:
            self.render_headers[FINGERPRINT_HEADER] = rendered.fingerprint
        session = self._request.session
        affinities = {id(prompt): self.services.prefix_caches.affinity(session, prompt) for prompt in prompts}
        layout = [(prompt, choice) for prompt in prompts for choice in range(prompt.choices)]
        for index, (prompt, choice) in enumerate(layout):
            if index:
                self.runs.append(Run(self, index, choice))
                self._open_runs += 1
            self.runs[index].prompt = prompt
            self.runs[index].members.affinity = affinities[id(prompt)]

    def note_decision(self, role: str, decision: Decision) -> None:
        if len(self.decisions) < NOTED_DECISIONS:
            self.decisions.append((role, decision.shortened()))
            self.span.decided(role, decision)

    def explanation(self) -> bytes | None:
        """The decisions so far as JSON, for a client that asked."""
        if not self._request.wants_decisions:
            return None
        return msgspec.json.encode([{"role": role} | made.as_json() for role, made in self.decisions])

    def reader(self, run: Run, pump: OutputPump) -> Reader:
        """What makes chunks for the client out of the output of ``run``."""
        prompt = run.whole_prompt
        stream = DerenderStream(
            self,
            run.index,
            prompt.fields["token_ids"],
            len(prompt.token_ids),
            on_read=pump.read,
            on_failed=pump.failed,
            on_crash=run.crashed,
        )
        stream.prepare()
        return Recording(run, stream) if self.streaming and (self._recorded or self._keeps_turn) else stream

    # ---- what runs report ----------------------------------------------------------------------------------

    def emit(self, events: Sequence[msgspec.Raw], usage: RunUsage) -> None:
        """Hand what derender made of one output to the client. Raises ``HopError`` for what is not of its
        API."""
        frames = self.answer.frames(events, usage)
        if frames:
            self.outbox.put(frames)

    @property
    def ends_with_runs(self) -> bool:
        """Nothing is left to do when every run has its output."""
        return self.streaming and not self._keeps_turn

    def run_flushed(self) -> None:
        """For whole answers, made when every run has its output, and turns that are kept."""
        if all(run.flushed for run in self.runs) and self._last_task is None:
            last = self._keep_turn() if self.streaming else self._answer_whole()
            self._last_task = self.services.supervisor.spawn(
                last, f"derender {self.base_id}", self.runs[0].crashed
            )

    def run_completed(self) -> None:
        self._completed_runs += 1
        if self._completed_runs < len(self.runs):
            return
        self._outcome = "ok"
        self.timing.mark("finished", perf_counter())
        if self.streaming:
            self._end_stream()
        self.outbox.end()

    def fail(self, error: ApiError) -> None:
        """The first failure is the answer's end; the other runs are given up."""
        if self._outcome is not None:
            return
        self._outcome = outcome_of(error.status)
        self._error = error
        if error.retry_after is None and error.status in (429, 503):
            error.retry_after = self.services.admission.retry_after("requests")
        self.timing.mark("finished", perf_counter())
        access = self._request.access
        told = error if access is None else access.told(error, self._request.model)
        self.outbox.fail(told, self.answer.dialect.error_frames(told))
        self._post_all(Event.SIBLING_FAILED)

    def run_over(self) -> None:
        self._open_runs -= 1
        if self._open_runs:
            return
        for task in (self._render_task, self._last_task):
            if task is not None and not task.done():
                task.cancel()
        self._deadline_timer.cancel()
        self._place.leave()
        self.services.integrity.in_flight -= 1
        self.services.integrity.features_bytes -= self._features_bytes
        self.services.exchanges.discard(self)
        self.timing.mark("finished", perf_counter())
        report(self, self._request, self._outcome or "abandoned", self._error)
        # They know this object. Without the circle a request is freed at its end, else by a collection of
        # garbage, of which tens of thousands of objects wait before that.
        self.runs.clear()
        self._encodings.clear()

    # ---- assembly ------------------------------------------------------------------------------------------

    def _timing_report(self) -> dict[str, Any]:
        usage = self.answer.usage
        return self.timing.report(members=self._request.sees_members) | {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        }

    def _end_stream(self) -> None:
        end = self.answer.end(self._extra())
        if end:
            self.outbox.put(end)

    @property
    def _recorded(self) -> bool:
        """The record of a stream is in its usage chunk, so that no client gets one that it does not know."""
        return self._request.wants_record and (self.answer.tells_usage or not self.streaming)

    def _extra(self) -> dict[str, Any]:
        """Fields of our own that the client has asked for."""
        extra: dict[str, Any] = {}
        if self._recorded:
            extra["record"] = self.answer.record(self.render_headers.get(FINGERPRINT_HEADER))
        if self._conversation is not None and (self.answer.tells_usage or not self.streaming):
            extra["continuation"] = self._conversation.report
        if self._request.wants_timing:
            extra["pd_timing"] = self._timing_report()
        return extra

    async def _answer_whole(self) -> None:
        self.timing.mark("output_complete", perf_counter())
        services = self.services
        request = self.answer.derender_request()
        budget = self.budget(services.settings.timeouts.derender)

        span = self.span.hop("derender")

        async def call(url: str) -> bytes:
            body = await services.derender_client.whole(
                url, self.answer.endpoint, request, self.call_headers(span, budget), budget
            )
            return self.answer.read(body)

        began = perf_counter()
        attempts = services.settings.policy.derender_attempts
        try:
            body = await on_render_members(services, "derender", attempts, call, self.may_derender)
        except HopError as error:
            span.end(error)
            self.runs[0].post(Event.DERENDER_FAILED, error)
            return
        finally:
            span.end()
        services.metrics.derender_calls.observe(perf_counter() - began)
        self.timing.mark("first_output", perf_counter())
        self.timing.mark("finished", perf_counter())
        if extra := self._extra():
            body = with_fields(body, extra)
        if self._keeps_turn:
            await self._store_turn()
        self.outbox.put(body)
        self._post_all(Event.FLUSHED)

    # ---- the conversation ----------------------------------------------------------------------------------

    @property
    def _keeps_turn(self) -> bool:
        return self._conversation is not None and self._conversation.keeps(self.answer.prompts[0])

    async def _keep_turn(self) -> None:
        """Of a stream, whose end its client is told after."""
        await self._store_turn()
        self._post_all(Event.FLUSHED)

    async def _store_turn(self) -> None:
        assert self._conversation is not None
        [run] = self.runs
        # As derender counts them: decode may have sent more, past a stop string.
        output = run.output.token_ids[: self.answer.usage.completion_tokens]
        await self._conversation.keep(self.answer.prompts[0], output)

    @property
    def warnings(self) -> list[str]:
        """What render says of the request, once it has answered."""
        return [warning for prompt in self.answer.prompts for warning in prompt.warnings]

    @property
    def continuation_header(self) -> bytes | None:
        """What became of the turn that the client named, once render has answered."""
        return None if self._conversation is None else self._conversation.header
