"""Continuous-batching scheduler: which sequence computes what next, and who owns which block. Pure.

Theory of operation. A request (one prompt, ``n`` sequences) waits until a slot and the blocks for its longest
possible output are free, first come first served; it then never has to be evicted. Its prompt is computed in
chunks (``PREFILLING``) or pulled from another engine (``LOADING``) into the first sequence's blocks, copied
to the other sequences (a fork), and all of them decode.

``plan`` hands out one step of work; ``finish_step`` ends it. Between the two the step's blocks are in use, so
an abort that arrives meanwhile takes effect at ``finish_step``; the blocks of a loading request belong to the
transfer until ``loaded``. Every path out of the scheduler goes through ``_retire``, which frees all blocks
but those put under a lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from orchestrator.embedded.blocks import BlockAllocator
from orchestrator.embedded.leases import Lease, LeaseTable


class QueueFull(Exception):
    """The waiting queue is at its bound."""


class TooLarge(Exception):
    """The request could never get enough blocks."""


class State(Enum):
    WAITING = auto()
    LOADING = auto()
    PREFILLING = auto()
    DECODING = auto()
    DONE = auto()


@dataclass(eq=False)
class ScheduledSequence:
    """One output sequence. ``token`` at ``position`` is what its next decode step computes; no token: the
    prompt ends there, and the step only has to sample."""

    request: ScheduledRequest
    index: int
    token: int | None
    position: int
    blocks: tuple[int, ...] = ()
    ready_at: float = 0.0
    finished: bool = False


@dataclass(eq=False)
class ScheduledRequest:
    """One prompt and its ``n`` sequences. ``hold``: put the prompt's KV under a lease when it ends by length.
    ``remote``: the prompt's KV comes from another engine."""

    id: str
    prompt: tuple[int, ...]
    n: int
    max_tokens: int
    hold: bool = False
    remote: bool = False
    state: State = State.WAITING
    computed: int = 0
    aborted: bool = False
    in_step: bool = False
    sequences: list[ScheduledSequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequences = [ScheduledSequence(self, i, None, len(self.prompt) - 1) for i in range(self.n)]


@dataclass(frozen=True)
class PrefillWork:
    """Compute ``request.prompt[start:end]``."""

    request: ScheduledRequest
    start: int
    end: int


@dataclass(frozen=True)
class Fork:
    """Copy whole blocks from ``source`` to ``target``."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """Work of one step, to be done in this order: forks, decode, prefill."""

    forks: Sequence[Fork]
    decode: Sequence[ScheduledSequence]
    prefill: PrefillWork | None


class Scheduler:
    def __init__(
        self,
        allocator: BlockAllocator,
        leases: LeaseTable,
        *,
        block_size: int,
        max_sequences: int,
        max_waiting: int,
        prefill_chunk: int,
    ) -> None:
        self.allocator = allocator
        self.leases = leases
        self._block_size = block_size
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._chunk = prefill_chunk
        self._waiting: OrderedDict[str, ScheduledRequest] = OrderedDict()
        self._running: OrderedDict[str, ScheduledRequest] = OrderedDict()
        self._forks: list[ScheduledRequest] = []
        self._step: list[ScheduledRequest] | None = None

    def __repr__(self) -> str:
        return f"<Scheduler {self.waiting} waiting, {self.running} running, {self.allocator}, {self.leases}>"

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that own blocks and have not ended."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def blocks_needed(self, request: ScheduledRequest) -> int:
        """Blocks of one sequence at its longest; the last sampled token is never computed."""
        return self.blocks_for(len(request.prompt) + request.max_tokens - 1)

    def submit(self, request: ScheduledRequest) -> None:
        """Queue a request. Raises QueueFull or TooLarge; the id must be new."""
        if request.id in self:
            raise ValueError(f"request {request.id!r} exists already")
        needed = request.n * self.blocks_needed(request)
        if needed > self.allocator.total:
            raise TooLarge(f"the request needs {needed} KV blocks, the engine has {self.allocator.total}")
        if request.n > self._max_sequences:
            raise TooLarge(f"the request has {request.n} sequences, the engine runs {self._max_sequences}")
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull(f"{len(self._waiting)} requests are waiting already")
        self._waiting[request.id] = request

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._running

    def running_request(self, request_id: str) -> ScheduledRequest:
        return self._running[request_id]

    def admit(self) -> list[ScheduledRequest]:
        """Give slots and blocks to waiting requests, in order, as long as the first one fits."""
        admitted: list[ScheduledRequest] = []
        while self._waiting:
            request = next(iter(self._waiting.values()))
            slots = sum(not s.finished for r in self._running.values() for s in r.sequences)
            needed = self.blocks_needed(request)
            if slots + request.n > self._max_sequences or request.n * needed > self.allocator.free:
                break
            for sequence in request.sequences:
                blocks = self.allocator.allocate(needed)
                assert blocks is not None  # n * needed blocks are free
                sequence.blocks = blocks
            del self._waiting[request.id]
            self._running[request.id] = request
            if request.remote:
                request.state = State.LOADING
            else:
                self._advance(request, 0)
            admitted.append(request)
        return admitted

    def loaded(self, request: ScheduledRequest, ok: bool) -> None:
        """The transfer of a LOADING request is over and touches its blocks no more."""
        if request.state is not State.LOADING:
            raise ValueError(f"request {request.id!r} is not loading")
        if ok and not request.aborted:
            self._advance(request, len(request.prompt))
        else:
            self._retire(request)

    def plan(self, now: float) -> Step | None:
        """The next step, or None if nothing can be computed at ``now``."""
        if self._step is not None:
            raise ValueError("the previous step has not ended")
        ready = [
            sequence
            for request in self._running.values()
            if request.state is State.DECODING
            for sequence in request.sequences
            if not sequence.finished and sequence.ready_at <= now
        ]
        prefill = None
        for request in self._running.values():
            if request.state is State.PREFILLING:
                end = min(request.computed + self._chunk, len(request.prompt))
                prefill = PrefillWork(request, request.computed, end)
                break
        if not ready and prefill is None:
            return None
        forks = [fork for request in self._forks for fork in self._forks_of(request)]
        involved = [sequence.request for sequence in ready]
        involved += self._forks + ([prefill.request] if prefill else [])
        self._forks = []
        self._step = involved
        for request in involved:
            request.in_step = True
        return Step(forks, ready, prefill)

    def next_ready(self) -> float | None:
        """When the next sequence that only waits for its time may decode."""
        times = (
            sequence.ready_at
            for request in self._running.values()
            if request.state is State.DECODING
            for sequence in request.sequences
            if not sequence.finished
        )
        return min(times, default=None)

    def prefilled(self, work: PrefillWork) -> None:
        """The chunk of the current step is computed."""
        self._advance(work.request, work.end)

    def decoded(self, sequence: ScheduledSequence, token: int, *, finished: bool, ready_at: float) -> None:
        """The current step sampled ``token`` for the sequence."""
        sequence.token = token
        sequence.position += 1
        sequence.ready_at = ready_at
        sequence.finished = finished

    def finish_step(self) -> list[ScheduledRequest]:
        """End the step: retire what is done or aborted and return it. ``hold`` must come before."""
        retired: list[ScheduledRequest] = []
        for request in dict.fromkeys(self._step or ()):
            request.in_step = False
            if request.aborted or all(sequence.finished for sequence in request.sequences):
                self._retire(request)
                retired.append(request)
        self._step = None
        return retired

    def hold(self, request: ScheduledRequest, prompt_digest: str, now: float) -> Lease:
        """Put the prompt's blocks of a one-sequence request under a lease, taking them from the request."""
        sequence = request.sequences[0]
        count = self.blocks_for(len(request.prompt))
        kept, sequence.blocks = sequence.blocks[:count], sequence.blocks[count:]
        return self.leases.grant(request.id, kept, len(request.prompt), prompt_digest, now)

    def abort(self, request_id: str) -> ScheduledRequest | None:
        """End a request; None if there is none of that id. Blocks in use are freed when their use ends."""
        request = self._waiting.get(request_id) or self._running.get(request_id)
        if request is None or request.aborted:
            return None
        request.aborted = True
        if not request.in_step and request.state is not State.LOADING:
            self._retire(request)
        return request

    def end_lease(self, lease: Lease) -> None:
        self.allocator.release(self.leases.finish(lease))

    def expire_leases(self, now: float) -> None:
        for blocks in self.leases.expire(now):
            self.allocator.release(blocks)

    def _advance(self, request: ScheduledRequest, computed: int) -> None:
        request.computed = computed
        if computed < len(request.prompt):
            request.state = State.PREFILLING
            return
        request.state = State.DECODING
        if request.n > 1:
            self._forks.append(request)

    def _forks_of(self, request: ScheduledRequest) -> list[Fork]:
        count = self.blocks_for(request.computed)
        first, *others = request.sequences
        return [Fork(first.blocks[:count], other.blocks[:count]) for other in others]

    def _retire(self, request: ScheduledRequest) -> None:
        for sequence in request.sequences:
            sequence.finished = True
            self.allocator.release(sequence.blocks)
            sequence.blocks = ()
        self._waiting.pop(request.id, None)
        self._running.pop(request.id, None)
        if request in self._forks:
            self._forks.remove(request)
        request.state = State.DONE
