"""The engine: one model thread that runs the scheduler's steps on a backend, and a thread-safe front.

The scheduler and the leases are pure and not thread-safe; every access is under one lock that is never held
while the backend computes, so calls from an event loop return in microseconds. Events go to the job's
listener in order, on the model thread or on the thread of the call that caused them; a listener only hands
them on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from orchestrator.embedded.backend import Backend, Decoded, DecodeRow, PromptLogprobs, SequenceSource
from orchestrator.embedded.blocks import BlockAllocator
from orchestrator.embedded.leases import Lease, LeaseTable
from orchestrator.embedded.sampler import Ending, SampledToken, SamplingSettings, ending
from orchestrator.embedded.scheduler import ScheduledRequest, Scheduler, State, Step
from orchestrator.embedded.transfer_protocol import Hello, prompt_digest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineSettings:
    """Bounds of one engine. ``lease_seconds``: how long prefilled KV is kept without a heartbeat."""

    max_sequences: int = 8
    max_waiting: int = 256
    prefill_chunk: int = 512
    block_size: int = 16
    lease_seconds: float = 30.0
    leases_remembered: int = 10_000


@dataclass(frozen=True)
class Job:
    """A validated request. ``id`` is unique within the process's life."""

    id: str
    prompt: tuple[int, ...]
    settings: SamplingSettings
    n: int = 1
    hold: bool = False
    remote: bool = False


@dataclass(frozen=True)
class LoadNow:
    """The blocks for the prompt's KV are allocated: fill them, then call ``Engine.loaded``."""

    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Started:
    """The request left the queue (``LoadNow`` says so for one whose KV comes from elsewhere)."""


@dataclass(frozen=True)
class Token:
    index: int
    sampled: SampledToken
    ending: Ending | None


@dataclass(frozen=True)
class Held:
    """Prefilled KV under a lease; ``expires_at`` is Unix seconds."""

    blocks: tuple[int, ...]
    tokens: int
    expires_at: float


@dataclass(frozen=True)
class Done:
    """All sequences have ended."""

    prompt_logprobs: PromptLogprobs | None
    held: Held | None


@dataclass(frozen=True)
class Aborted:
    """The request was aborted; sequences that had not ended will not go on."""


@dataclass(frozen=True)
class Failed:
    """The backend failed on this request."""

    message: str


class Loaded(Enum):
    """What became of a request whose transfer has ended."""

    READY = auto()
    REJECTED = auto()
    ABORTED = auto()


Event = LoadNow | Started | Token | Done | Aborted | Failed
Listener = Callable[[Event], None]


@dataclass
class Totals:
    """Counters since the start."""

    prompt_tokens_computed: int = 0
    prompt_tokens_pulled: int = 0
    generated_tokens: int = 0
    kv_bytes_sent: int = 0
    kv_bytes_received: int = 0
    transfers_received: int = 0
    transfers_failed: int = 0
    transfer_seconds: float = 0.0
    steps: int = 0
    finished: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Gauges:
    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    leases: int
    leased_blocks: int
    leases_granted: int
    leases_consumed: int
    leases_expired: int


@dataclass(eq=False)
class _Live:
    job: Job
    listener: Listener
    sources: list[SequenceSource]
    generated: list[int]
    prompt_logprobs: PromptLogprobs = field(default_factory=list)
    held: Held | None = None


class Engine:
    """``clock`` is monotonic seconds. ``start`` runs the model thread, ``stop`` ends it and all requests."""

    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        *,
        blocks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.totals = Totals()
        self._clock = clock
        self._leases = LeaseTable(settings.lease_seconds, remembered=settings.leases_remembered)
        self._scheduler = Scheduler(
            BlockAllocator(blocks),
            self._leases,
            block_size=settings.block_size,
            max_sequences=settings.max_sequences,
            max_waiting=settings.max_waiting,
            prefill_chunk=settings.prefill_chunk,
        )
        self._live: dict[str, _Live] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def __repr__(self) -> str:
        return f"<Engine {self._scheduler}>"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End every request (their listeners see Aborted) and the model thread."""
        with self._changed:
            ids = list(self._live)
        for job_id in ids:
            self.abort(job_id)
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def gauges(self) -> Gauges:
        with self._changed:
            allocator = self._scheduler.allocator
            return Gauges(
                running=self._scheduler.running,
                waiting=self._scheduler.waiting,
                blocks_used=allocator.used,
                blocks_total=allocator.total,
                leases=len(self._leases),
                leased_blocks=self._leases.blocks,
                leases_granted=self._leases.granted,
                leases_consumed=self._leases.consumed,
                leases_expired=self._leases.expired,
            )

    # Requests

    def submit(self, job: Job, listener: Listener) -> None:
        """Queue a job. Raises QueueFull, TooLarge, or ApiError if the backend cannot answer it."""
        sources = [self.backend.open_sequence(job.prompt, job.settings, index) for index in range(job.n)]
        request = ScheduledRequest(
            job.id, job.prompt, job.n, job.settings.max_tokens, hold=job.hold, remote=job.remote
        )
        now = self._clock()
        for sequence, source in zip(request.sequences, sources, strict=True):
            sequence.ready_at = now + source.delay
        with self._changed:
            self._scheduler.submit(request)
            self._live[job.id] = _Live(job, listener, sources, [0] * job.n)
            self._changed.notify()

    def abort(self, job_id: str) -> None:
        """End a job; unknown or ended ids are ignored. Its listener sees Aborted, at once unless the backend
        or a transfer is using its blocks."""
        with self._changed:
            request = self._scheduler.abort(job_id)
            live = self._retire(request) if request is not None and request.state is State.DONE else None
            self._changed.notify()
        if live is not None:
            live.listener(Aborted())

    def loaded(self, job_id: str, *, blocks: tuple[int, ...], ok: bool, seconds: float) -> Loaded:
        """The transfer that ``LoadNow`` asked for is over, after ``seconds``, and touches the blocks no more.
        Unless the answer is READY the job has ended; no event says so."""
        with self._changed:
            live, request = self._live[job_id], self._scheduler.running_request(job_id)
        accepted = ok and self.backend.accept_loaded(live.job.prompt, blocks)
        with self._changed:
            self._scheduler.loaded(request, accepted)
            self._changed.notify()
            if request.state is State.DONE:
                self.totals.transfers_failed += 1
                self._retire(request)
                return Loaded.ABORTED if request.aborted else Loaded.REJECTED
            self.totals.prompt_tokens_pulled += len(live.job.prompt)
            self.totals.kv_bytes_received += self.bytes_of(blocks)
            self.totals.transfers_received += 1
            self.totals.transfer_seconds += seconds
            return Loaded.READY

    # Leases (LeaseSource)

    def claim(self, hello: Hello) -> Lease:
        with self._changed:
            blocks = tuple(hello.block_ids)
            return self._leases.claim(
                hello.request_id, blocks, hello.tokens, hello.prompt_digest, self._clock()
            )

    def renew(self, lease: Lease) -> bool:
        with self._changed:
            return self._leases.renew(lease, self._clock())

    def begin(self, lease: Lease) -> bool:
        with self._changed:
            return self._leases.begin(lease, self._clock())

    def end(self, lease: Lease) -> None:
        with self._changed:
            self._scheduler.end_lease(lease)
            self._changed.notify()

    def buffers(self, blocks: tuple[int, ...]) -> Iterable[memoryview]:
        return self.backend.store.buffers(blocks)

    def bytes_of(self, blocks: tuple[int, ...]) -> int:
        return self.backend.store.layout.bytes_of(len(blocks))

    def sent(self, count: int) -> None:
        with self._changed:
            self.totals.kv_bytes_sent += count

    # Model thread

    def _run(self) -> None:
        while True:
            with self._changed:
                step, events = self._next_step()
                if step is None and not events:
                    if self._stopping:
                        return
                    self._changed.wait(self._idle_seconds())
                    continue
            _deliver(events)
            if step is not None:
                self._work(step)

    def _next_step(self) -> tuple[Step | None, list[tuple[Listener, Event]]]:
        now = self._clock()
        self._scheduler.expire_leases(now)
        events: list[tuple[Listener, Event]] = []
        for request in self._scheduler.admit():
            live = self._live[request.id]
            if request.remote:
                count = self._scheduler.blocks_for(len(request.prompt))
                events.append((live.listener, LoadNow(request.sequences[0].blocks[:count])))
            else:
                events.append((live.listener, Started()))
        return self._scheduler.plan(now), events

    def _idle_seconds(self) -> float | None:
        """Seconds until something happens by itself; None if nothing will."""
        times = (self._scheduler.next_ready(), self._leases.next_deadline())
        due = min((time for time in times if time is not None), default=None)
        return None if due is None else max(0.0, due - self._clock())

    def _work(self, step: Step) -> None:
        try:
            decoded, logprobs = self._compute(step)
        except Exception:
            log.exception("a step failed")
            _deliver(self._give_up(step))
        else:
            _deliver(self._commit(step, decoded, logprobs))

    def _compute(self, step: Step) -> tuple[list[Decoded], PromptLogprobs]:
        for fork in step.forks:
            self.backend.store.copy(fork.source, fork.target)
        rows = [
            (
                DecodeRow(sequence.token, sequence.position, sequence.blocks),
                self._live[sequence.request.id].sources[sequence.index],
            )
            for sequence in step.decode
        ]
        decoded = self.backend.decode(rows) if rows else []
        if step.prefill is None:
            return decoded, []
        work = step.prefill
        settings = self._live[work.request.id].job.settings
        blocks = work.request.sequences[0].blocks
        logprobs = self.backend.prefill(
            work.request.prompt, work.start, work.end, blocks, settings.prompt_logprobs
        )
        return decoded, logprobs

    def _commit(
        self, step: Step, decoded: Sequence[Decoded], logprobs: PromptLogprobs
    ) -> list[tuple[Listener, Event]]:
        events: list[tuple[Listener, Event]] = []
        with self._changed:
            now = self._clock()
            self.totals.steps += 1
            if step.prefill is not None:
                self._scheduler.prefilled(step.prefill)
                self._live[step.prefill.request.id].prompt_logprobs += logprobs
                self.totals.prompt_tokens_computed += step.prefill.end - step.prefill.start
            for sequence, result in zip(step.decode, decoded, strict=True):
                live = self._live[sequence.request.id]
                if sequence.request.aborted:
                    continue
                live.generated[sequence.index] += 1
                self.totals.generated_tokens += 1
                token = result.sampled.token
                end = ending(live.job.settings, token, live.generated[sequence.index]) or result.ending
                self._scheduler.decoded(
                    sequence, token, finished=end is not None, ready_at=now + result.delay
                )
                if end is not None:
                    self._count(end.finish_reason)
                    if live.job.hold and end.finish_reason == "length":
                        live.held = self._hold(sequence.request, now)
                events.append((live.listener, Token(sequence.index, result.sampled, end)))
            for request in self._scheduler.finish_step():
                live = self._retire(request)
                events.append((live.listener, Aborted() if request.aborted else self._done(live)))
        return events

    def _hold(self, request: ScheduledRequest, now: float) -> Held:
        lease = self._scheduler.hold(request, prompt_digest(request.prompt), now)
        return Held(lease.blocks, lease.tokens, time.time() + self.settings.lease_seconds)

    @staticmethod
    def _done(live: _Live) -> Done:
        asked = live.job.settings.prompt_logprobs is not None
        return Done(live.prompt_logprobs if asked else None, live.held)

    def _give_up(self, step: Step) -> list[tuple[Listener, Event]]:
        requests = [sequence.request for sequence in step.decode]
        requests += [step.prefill.request] if step.prefill else []
        events: list[tuple[Listener, Event]] = []
        with self._changed:
            for request in requests:
                self._scheduler.abort(request.id)
            for request in self._scheduler.finish_step():
                live = self._retire(request)
                events.append((live.listener, Failed("The engine failed on this request.")))
        return events

    def _retire(self, request: ScheduledRequest) -> _Live:
        if request.aborted:
            self._count("abort")
        return self._live.pop(request.id)

    def _count(self, reason: str) -> None:
        self.totals.finished[reason] = self.totals.finished.get(reason, 0) + 1


def _deliver(events: Iterable[tuple[Listener, Event]]) -> None:
    for listener, event in events:
        listener(event)
