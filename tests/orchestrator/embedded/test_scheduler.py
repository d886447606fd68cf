"""Admission, chunking, forks and, for every order of events, that no block is lost."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.blocks import BlockAllocator
from orchestrator.embedded.leases import ClaimRefused, Lease, LeaseTable
from orchestrator.embedded.scheduler import (
    QueueFull,
    ScheduledRequest,
    Scheduler,
    State,
    Step,
    TooLarge,
)


def scheduler(*, blocks: int = 16, sequences: int = 4, waiting: int = 3) -> Scheduler:
    return Scheduler(
        BlockAllocator(blocks),
        LeaseTable(10.0, remembered=10),
        block_size=4,
        max_sequences=sequences,
        max_waiting=waiting,
        prefill_chunk=8,
    )


def request(name: str, length: int = 9, n: int = 1, max_tokens: int = 4, **flags: bool) -> ScheduledRequest:
    return ScheduledRequest(name, tuple(range(length)), n, max_tokens, **flags)


def run_step(s: Scheduler, now: float = 0.0, *, finish: bool = False) -> Step | None:
    s.admit()
    step = s.plan(now)
    if step is None:
        return None
    for sequence in step.decode:
        s.decoded(sequence, 7, finished=finish, ready_at=now)
    if step.prefill is not None:
        s.prefilled(step.prefill)
    s.finish_step()
    return step


def test_prefill_takes_the_whole_prompt_at_fixed_boundaries() -> None:
    s = scheduler()
    s.submit(request("a", length=20))
    chunks = []
    while (step := run_step(s)) is not None and step.prefill is not None:
        chunks.append((step.prefill.start, step.prefill.end))
    assert chunks == [(0, 8), (8, 16), (16, 20)]
    assert step is not None
    assert [(sequence.position, sequence.index) for sequence in step.decode] == [(20, 0)]


def test_decode_goes_on_while_another_prompt_is_prefilled() -> None:
    s = scheduler()
    s.submit(request("a", length=1))
    assert run_step(s) is not None
    s.submit(request("b", length=18))
    step = run_step(s)
    assert step is not None
    assert [x.request.id for x in step.decode] == ["a"]
    assert step.prefill is not None
    assert step.prefill.request.id == "b"


def test_choices_fork_from_the_first_one_after_prefill() -> None:
    s = scheduler()
    s.submit(request("a", length=6, n=3))
    first, second = run_step(s), run_step(s)
    assert first is not None
    assert first.forks == []
    assert second is not None
    sequences = second.decode
    assert [(f.source, f.target) for f in second.forks] == [
        (sequences[0].blocks[:2], sequences[1].blocks[:2]),
        (sequences[0].blocks[:2], sequences[2].blocks[:2]),
    ]
    third = run_step(s)
    assert third is not None
    assert third.forks == []


def test_admission_is_first_come_first_served_and_reserves_the_longest_output() -> None:
    s = scheduler(blocks=6)
    s.submit(request("a", length=9, max_tokens=8))  # 16 computed tokens: 4 blocks
    s.submit(request("b", length=9, max_tokens=8))
    s.submit(request("c", length=1, max_tokens=1))  # would fit, but must not overtake
    assert [r.id for r in s.admit()] == ["a"]
    assert s.allocator.used == 4
    s.abort("a")
    assert [r.id for r in s.admit()] == ["b", "c"]


def test_slots_bound_the_running_sequences() -> None:
    s = scheduler(sequences=2)
    s.submit(request("a", n=2, length=1))
    s.submit(request("b", length=1))
    assert [r.id for r in s.admit()] == ["a"]
    run_step(s)
    run_step(s, finish=True)
    assert [r.id for r in s.admit()] == ["b"]


def test_what_can_never_run_is_refused() -> None:
    s = scheduler(blocks=4, sequences=2)
    with pytest.raises(TooLarge, match="KV blocks"):
        s.submit(request("a", length=9, max_tokens=9))
    with pytest.raises(TooLarge, match="sequences"):
        s.submit(request("b", length=1, n=3, max_tokens=1))


def test_the_queue_is_bounded() -> None:
    s = scheduler(waiting=2)
    s.submit(request("a"))
    s.submit(request("b"))
    with pytest.raises(QueueFull):
        s.submit(request("c"))
    s.admit()
    s.submit(request("c"))


def test_a_sequence_waits_for_its_time() -> None:
    s = scheduler()
    slow = request("a", length=1)
    slow.sequences[0].ready_at = 5.0
    s.submit(slow)
    assert run_step(s, now=4.8) is not None, "its prompt does not wait"
    assert run_step(s, now=4.9) is None
    assert s.next_ready() == 5.0
    assert run_step(s, now=5.0) is not None


def test_an_abort_during_a_step_takes_effect_at_its_end() -> None:
    s = scheduler()
    s.submit(request("a", length=1))
    run_step(s)
    assert s.plan(0.0) is not None
    aborted = s.abort("a")
    assert aborted is not None
    assert aborted.state is State.DECODING
    assert s.allocator.used
    assert s.finish_step() == [aborted]
    assert (aborted.state, s.allocator.used) == (State.DONE, 0)


def test_blocks_of_a_loading_request_belong_to_the_transfer() -> None:
    s = scheduler()
    loading = request("a", remote=True)
    s.submit(loading)
    s.admit()
    assert loading.state is State.LOADING
    assert s.plan(0.0) is None
    s.abort("a")
    assert s.allocator.used
    s.loaded(loading, True)
    assert (loading.state, s.allocator.used) == (State.DONE, 0)


def test_a_loaded_prompt_only_has_to_be_sampled_from() -> None:
    s = scheduler()
    loading = request("a", length=9, remote=True)
    s.submit(loading)
    s.admit()
    s.loaded(loading, True)
    step = s.plan(0.0)
    assert step is not None
    assert [(x.token, x.position) for x in step.decode] == [(None, 8)]


def test_held_blocks_stay_until_the_lease_ends() -> None:
    s = scheduler()
    held = request("a", length=5, max_tokens=8, hold=True)
    s.submit(held)
    run_step(s)
    s.admit()
    step = s.plan(0.0)
    assert step is not None
    s.decoded(step.decode[0], 1, finished=True, ready_at=0.0)
    lease = s.hold(held, "digest", now=0.0)
    s.finish_step()
    assert (lease.blocks, s.allocator.used) == ((0, 1), 2)
    s.expire_leases(10.0)
    assert s.allocator.used == 0


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "abort", "begin", "end", "load", "claim", "consume", "expire"]),
        st.integers(0, 7),
    ),
    max_size=80,
)


@given(ACTIONS)
def test_every_order_of_events_leaves_no_block_in_use(actions: list[tuple[str, int]]) -> None:
    """Submissions (plain, several choices, held, remote), aborts inside and outside steps, transfers that end
    well or badly, leases claimed, delivered, given up and expired."""
    s = scheduler(blocks=20)
    now, step, number = 0.0, None, 0
    requests: list[ScheduledRequest] = []
    claims: list[Lease] = []

    def end(current: Step) -> None:
        for sequence in current.decode:
            if sequence.request.aborted:
                continue
            done = sequence.position + 1 >= 8
            s.decoded(sequence, 7, finished=done, ready_at=now)
            if done and sequence.request.hold:
                s.hold(sequence.request, "d", now)
        if current.prefill is not None:
            s.prefilled(current.prefill)
        s.finish_step()

    for action, value in actions:
        now += 0.5
        if action == "submit":
            number += 1
            kind = {"hold": value % 4 == 1, "remote": value % 4 == 2}
            item = request(f"r{number}", length=1 + value, n=1 + (value % 4 == 3), max_tokens=9, **kind)
            try:
                s.submit(item)
                requests.append(item)
            except QueueFull:
                pass
        elif action == "abort" and requests:
            s.abort(requests[value % len(requests)].id)
        elif action == "begin" and step is None:
            s.admit()
            step = s.plan(now)
        elif action == "end" and step is not None:
            end(step)
            step = None
        elif action == "load":
            for item in [r for r in requests if r.state is State.LOADING][:1]:
                s.loaded(item, value % 2 == 0)
        elif action == "claim" and requests:
            item = requests[value % len(requests)]
            blocks = s.leases._leases[item.id].blocks if item.id in s.leases._leases else ()
            with contextlib.suppress(ClaimRefused):
                claims.append(s.leases.claim(item.id, blocks, len(item.prompt), "d", now))
        elif action == "consume" and claims:
            lease = claims.pop(value % len(claims))
            s.leases.begin(lease, now)
            s.end_lease(lease)
        elif action == "expire":
            now += value * 2
            s.expire_leases(now)
        owned = [x for r in s._running.values() for q in r.sequences for x in q.blocks]
        leased = [x for lease in s.leases._leases.values() for x in lease.blocks]
        assert len(set(owned + leased)) == len(owned + leased) == s.allocator.used

    if step is not None:
        end(step)
    for item in requests:
        s.abort(item.id)
        if item.state is State.LOADING:
            s.loaded(item, False)
    for lease in claims:
        s.end_lease(lease)
    s.expire_leases(now + 1000)
    assert (s.allocator.used, s.idle, len(s.leases)) == (0, True, 0)
