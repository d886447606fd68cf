"""The request machine: every cell, and the laws that hold on every path through the table."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from orchestrator.core.request_machine import ImpossibleEvent, Policy, RequestMachine, build_table
from orchestrator.core.request_table import (
    ABORT_EARLY,
    FREE_HELD_KV,
    IMPOSSIBLE,
    INITIAL,
    OUTSIDE,
    TERMINAL,
    TRANSITIONS,
    WITHOUT_CLIENT,
    Effect,
    Event,
    Row,
    State,
)
from scripts import request_machine_diagram

# What must happen, written down apart from the code: state, event -> next state: effects in order.
EXPECTED = """
rendering rendered -> prefilling: start_prefill
rendering rendered_direct -> queued: choose_decode
rendering rendered_to_encode -> encoding: start_encode
rendering render_retry -> rendering: start_render
rendering render_failed -> failed: fail
rendering client_gone -> abandoned:
rendering sibling_failed -> abandoned:
rendering deadline -> failed: fail
encoding encoded -> prefilling: start_prefill
encoding encoded_direct -> queued: choose_decode
encoding encode_failed -> failed: leave_encode fail
encoding client_gone -> abandoned: leave_encode
encoding sibling_failed -> abandoned: leave_encode
encoding deadline -> failed: leave_encode fail
prefilling prefilled -> kv_held: hold_kv choose_decode
prefilling prefill_retry -> prefilling: start_prefill
prefilling prefill_recompute -> queued: count_recompute choose_decode
prefilling prefill_failed -> failed: fail
prefilling client_gone -> recalling: abort_prefill arm_cleanup
prefilling sibling_failed -> recalling: abort_prefill arm_cleanup
prefilling deadline -> recalling: fail abort_prefill arm_cleanup
kv_held decode_admitted -> decoding: start_decode
kv_held decode_failed -> failed: kv_stranded fail
kv_held lease_retry -> prefilling: kv_stranded start_prefill
kv_held lease_lost -> failed: kv_stranded fail
kv_held client_gone -> abandoned: kv_stranded
kv_held sibling_failed -> abandoned: kv_stranded
kv_held deadline -> failed: kv_stranded fail
queued decode_admitted -> decoding_direct: start_decode
queued decode_failed -> failed: fail
queued client_gone -> abandoned:
queued sibling_failed -> abandoned:
queued deadline -> failed: fail
decoding first_token -> buffering: kv_consumed
decoding resumed -> streaming: kv_consumed
decoding decode_retry -> prefilling: kv_stranded start_prefill
decoding decode_failed -> failed: kv_stranded fail
decoding lease_retry -> prefilling: abort_decode kv_stranded start_prefill
decoding lease_lost -> failed: abort_decode kv_stranded fail
decoding client_gone -> draining: arm_cleanup
decoding sibling_failed -> draining: arm_cleanup
decoding deadline -> draining: fail arm_cleanup
decoding_direct first_token -> buffering:
decoding_direct resumed -> streaming:
decoding_direct decode_retry_direct -> queued: choose_decode
decoding_direct decode_failed -> failed: fail
decoding_direct client_gone -> abandoned: abort_decode
decoding_direct sibling_failed -> abandoned: abort_decode
decoding_direct deadline -> failed: abort_decode fail
buffering visible -> streaming:
buffering decode_ended -> finishing: flush
buffering stop_matched -> finishing: abort_decode flush
buffering decode_retry -> prefilling: reset_output start_prefill
buffering decode_retry_direct -> queued: reset_output choose_decode
buffering decode_failed -> failed: fail
buffering derender_failed -> failed: abort_decode fail
buffering client_gone -> abandoned: abort_decode
buffering sibling_failed -> abandoned: abort_decode
buffering deadline -> failed: abort_decode fail
streaming decode_ended -> finishing: flush
streaming stop_matched -> finishing: abort_decode flush
streaming decode_resume -> prefilling: extend_prompt start_prefill
streaming decode_resume_direct -> queued: extend_prompt choose_decode
streaming decode_failed -> failed: fail
streaming derender_failed -> failed: abort_decode fail
streaming client_gone -> abandoned: abort_decode
streaming sibling_failed -> abandoned: abort_decode
streaming deadline -> failed: abort_decode fail
finishing flushed -> done: complete
finishing derender_failed -> failed: fail
finishing client_gone -> abandoned:
finishing sibling_failed -> abandoned:
finishing deadline -> failed: fail
finishing visible -> finishing:
recalling prefill_failed -> abandoned:
recalling abort_too_late -> abandoned: hold_kv kv_stranded
recalling cleanup_timeout -> abandoned:
recalling client_gone -> recalling:
recalling sibling_failed -> recalling:
recalling deadline -> recalling:
draining first_token -> abandoned: kv_consumed abort_decode
draining decode_failed -> abandoned: kv_stranded
draining cleanup_timeout -> abandoned: abort_decode kv_stranded
draining lease_lost -> abandoned: abort_decode kv_stranded
draining client_gone -> draining:
draining sibling_failed -> draining:
draining deadline -> draining:
freeing first_token -> abandoned: kv_consumed
freeing decode_failed -> abandoned: kv_stranded
freeing cleanup_timeout -> abandoned: abort_decode kv_stranded
freeing lease_lost -> abandoned: abort_decode kv_stranded
freeing client_gone -> freeing:
freeing sibling_failed -> freeing:
freeing deadline -> freeing:
done client_gone -> done:
done sibling_failed -> done:
done deadline -> done:
failed client_gone -> failed:
failed sibling_failed -> failed:
failed deadline -> failed:
abandoned client_gone -> abandoned:
abandoned sibling_failed -> abandoned:
abandoned deadline -> abandoned:
"""
EXPECTED_WHEN_FREEING = """
kv_held client_gone -> freeing: start_freeing arm_cleanup
kv_held sibling_failed -> freeing: start_freeing arm_cleanup
kv_held deadline -> freeing: fail start_freeing arm_cleanup
kv_held decode_failed -> freeing: fail start_freeing arm_cleanup
recalling abort_too_late -> freeing: hold_kv start_freeing
"""
EXPECTED_WHEN_ABORTING_EARLY = """
decoding client_gone -> abandoned: abort_decode kv_stranded
decoding sibling_failed -> abandoned: abort_decode kv_stranded
decoding deadline -> failed: abort_decode kv_stranded fail
"""

Cell = tuple[State, Event]


def read(text: str) -> dict[Cell, tuple[State, tuple[Effect, ...]]]:
    cells = {}
    for line in text.strip().splitlines():
        left, _, right = line.partition(" -> ")
        state, event = left.split()
        target, _, effects = right.partition(":")
        cells[State(state), Event(event)] = State(target), tuple(Effect(e) for e in effects.split())
    return cells


CELLS = read(EXPECTED)
LEAVING = Policy(held_kv="lease")
POLICIES = [
    Policy(held_kv=held, abort_decode=abort)  # type: ignore[arg-type]
    for held in ("lease", "free")
    for abort in ("first_token", "at_once")
]


def machine_in(state: State, policy: Policy = LEAVING) -> RequestMachine:
    machine = RequestMachine(policy)
    machine.state = state
    return machine


@pytest.mark.parametrize("state", State, ids=lambda s: s.value)
@pytest.mark.parametrize("event", Event, ids=lambda e: e.value)
def test_cell(state: State, event: Event) -> None:
    machine = machine_in(state)
    expected = CELLS.get((state, event))
    if expected is None:
        with pytest.raises(ImpossibleEvent):
            machine.feed(event)
        assert machine.state is state
        return
    effects = machine.feed(event)
    assert (machine.state, effects) == expected


@pytest.mark.parametrize(
    ("policy", "cells"),
    [
        (Policy(held_kv="free"), EXPECTED_WHEN_FREEING),
        (Policy(held_kv="lease", abort_decode="at_once"), EXPECTED_WHEN_ABORTING_EARLY),
    ],
    ids=["free held kv", "abort early"],
)
def test_policy_replaces_exactly_its_cells(policy: Policy, cells: str) -> None:
    expected = CELLS | read(cells)
    table = build_table(policy)
    assert {
        (state, event): (step.state, step.effects)
        for state, row in table.items()
        for event, step in row.items()
    } == expected


@pytest.mark.parametrize("state", State, ids=lambda s: s.value)
def test_each_event_is_a_cell_or_named_impossible_and_never_both(state: State) -> None:
    cells = set(TRANSITIONS[state])
    assert cells | IMPOSSIBLE[state] == set(Event)
    assert not cells & IMPOSSIBLE[state]


def test_overlays_replace_only_cells_that_exist() -> None:
    overlays: tuple[Mapping[State, Row], ...] = (FREE_HELD_KV, ABORT_EARLY)
    for overlay in overlays:
        for state, row in overlay.items():
            assert set(row) <= set(TRANSITIONS[state])


def walks(policy: Policy, count: int) -> list[list[tuple[State, Event, State, tuple[Effect, ...]]]]:
    """Random paths from the start to a terminal state."""
    draw = random.Random(f"{policy}")
    table = build_table(policy)
    paths = []
    for _ in range(count):
        state, path, resumed = INITIAL.state, [], False
        while state not in TERMINAL:
            events = [e for e in Event if e in table[state]]
            if state in (State.DECODING, State.DECODING_DIRECT):
                # ``RequestMachine.first_token`` tells these apart.
                events.remove(Event.FIRST_TOKEN if resumed else Event.RESUMED)
            # Equal odds would end nearly every walk before it reaches output.
            [event] = draw.choices(events, [0.2 if e in OUTSIDE else 1.0 for e in events])
            step = table[state][event]
            path.append((state, event, step.state, step.effects))
            resumed = resumed or Effect.EXTEND_PROMPT in step.effects
            state = step.state
        paths.append(path)
    return paths


STARTS = {
    Effect.START_RENDER,
    Effect.START_ENCODE,
    Effect.START_PREFILL,
    Effect.START_DECODE,
    Effect.CHOOSE_DECODE,
}
OUTCOMES = {Effect.COMPLETE, Effect.FAIL}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_laws_of_every_path(policy: Policy) -> None:
    seen: set[State] = set()
    for path in walks(policy, 1500):
        effects = [effect for *_, step in path for effect in step]
        outcome = [effect for effect in effects if effect in OUTCOMES]
        held = visible = over = resumed = False
        for _state, event, target, step in path:
            seen.add(target)
            for effect in step:
                assert not (over and effect in STARTS | OUTCOMES), (
                    "work or a second outcome after the outcome"
                )
                resumed = resumed or effect is Effect.EXTEND_PROMPT
                assert not (visible and not resumed and effect in STARTS), "retry after visible output"
                assert not (visible and effect is Effect.RESET_OUTPUT), "output taken back"
                if effect is Effect.HOLD_KV:
                    assert not held
                    held = True
                elif effect in (Effect.KV_CONSUMED, Effect.KV_STRANDED):
                    held = False
                elif effect in (Effect.START_PREFILL, Effect.FLUSH):
                    assert not held, "a lease is settled before the run goes on without it"
                over = over or effect in OUTCOMES
            visible = visible or target is State.STREAMING
            client_left = event in (Event.CLIENT_GONE, Event.SIBLING_FAILED)
            over = over or client_left
        assert not held, "every lease is settled once"
        assert len(outcome) <= 1
        left = any(event in (Event.CLIENT_GONE, Event.SIBLING_FAILED) for _, event, *_ in path)
        assert outcome or left, "a client that is there is told something"
        if path[-1][2] is State.DONE:
            assert outcome == [Effect.COMPLETE]
    assert seen | {State.RENDERING} >= set(State) - (
        set() if policy.held_kv == "free" else {State.FREEING}
    ) - ({State.DRAINING} if policy.abort_decode == "at_once" else set())


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_outside_events_are_possible_in_every_state_and_end_the_interest_of_the_client(
    policy: Policy,
) -> None:
    table = build_table(policy)
    for state in State:
        for event in OUTSIDE:
            assert table[state][event].state in WITHOUT_CLIENT | TERMINAL


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_state_without_a_client_is_left_by_a_timeout(policy: Policy) -> None:
    table = build_table(policy)
    for state in WITHOUT_CLIENT - TERMINAL:
        assert table[state][Event.CLEANUP_TIMEOUT].state is State.ABANDONED
    for state, row in table.items():
        for step in row.values():
            if step.state in WITHOUT_CLIENT - TERMINAL:
                # Armed once, when the client leaves.
                assert (Effect.ARM_CLEANUP in step.effects) == (state not in WITHOUT_CLIENT)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_decode_is_waited_for_without_a_client_only_while_it_may_be_pulling_kv(policy: Policy) -> None:
    for path in walks(policy, 1500):
        held = False
        for _state, _event, target, step in path:
            for effect in step:
                if effect is Effect.HOLD_KV:
                    held = True
                elif effect in (Effect.KV_CONSUMED, Effect.KV_STRANDED):
                    held = False
            assert held or target not in (State.DRAINING, State.FREEING)


def test_params_are_never_sent_twice() -> None:
    """Between two decodes of a run in P/D mode lies a prefill."""
    for path in walks(Policy(held_kv="free"), 1500):
        fresh = False
        for _state, event, _target, step in path:
            if event in (Event.RENDERED_DIRECT, Event.ENCODED_DIRECT, Event.PREFILL_RECOMPUTE,
                         Event.DECODE_RETRY_DIRECT):  # fmt: skip
                break  # No params from here on.
            fresh = fresh or event in (Event.PREFILLED, Event.ABORT_TOO_LATE)
            if Effect.START_DECODE in step or Effect.START_FREEING in step:
                assert fresh
                fresh = False


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_images_are_encoded_at_most_once_and_before_any_engine_has_the_prompt(policy: Policy) -> None:
    for path in walks(policy, 1500):
        effects = [effect for *_, step in path for effect in step]
        assert effects.count(Effect.START_ENCODE) <= 1
        before = set()
        for effect in effects:
            if effect is Effect.START_ENCODE:
                assert not before & {Effect.START_PREFILL, Effect.CHOOSE_DECODE}
            before.add(effect)
        if Effect.LEAVE_ENCODE in effects:
            assert path[-1][0] is State.ENCODING, "whoever gives up while encoders work is done at once"


# ---- classification of failures ----------------------------------------------------------------------------


def test_prefill_failures() -> None:
    machine = RequestMachine(Policy(prefill_attempts=2))
    machine.feed(Event.RENDERED)
    assert machine.after_prefill_failure(retry_safe=True, client_fault=True) is Event.PREFILL_FAILED
    assert machine.after_prefill_failure(retry_safe=False, client_fault=False) is Event.PREFILL_FAILED
    assert machine.after_prefill_failure(retry_safe=True, client_fault=False) is Event.PREFILL_RETRY
    machine.feed(Event.PREFILL_RETRY)
    assert machine.after_prefill_failure(retry_safe=True, client_fault=False) is Event.PREFILL_FAILED


def test_a_prefill_that_could_not_read_a_kept_turn_is_sent_again_uncounted() -> None:
    machine = RequestMachine(Policy(prefill_attempts=1))
    machine.feed(Event.RENDERED)
    machine.feed(machine.after_unread_turn())
    assert (machine.state, machine.prefill_attempts) == (State.PREFILLING, 1)
    machine.feed(Event.CLIENT_GONE)
    assert machine.after_unread_turn() is Event.PREFILL_FAILED


def test_a_leg_whose_engine_lacked_images_is_sent_again_uncounted() -> None:
    machine = RequestMachine(Policy(prefill_attempts=1, decode_attempts=1))
    machine.feed(Event.RENDERED)
    machine.feed(machine.after_missed_items())
    assert (machine.state, machine.prefill_attempts) == (State.PREFILLING, 1)
    machine.feed(Event.PREFILLED)
    machine.feed(Event.DECODE_ADMITTED)
    # What was held is used by one decode alone, so it is computed again.
    assert Effect.KV_STRANDED in machine.feed(machine.after_missed_items())
    assert (machine.state, machine.prefill_attempts, machine.decode_attempts) == (State.PREFILLING, 1, 0)
    machine.feed(Event.CLIENT_GONE)
    assert machine.after_missed_items() is Event.PREFILL_FAILED


def test_a_lone_decode_that_lacked_images_is_sent_again_uncounted() -> None:
    machine = RequestMachine(Policy(decode_attempts=1))
    machine.feed(Event.RENDERED_DIRECT)
    machine.feed(Event.DECODE_ADMITTED)
    machine.feed(machine.after_missed_items())
    machine.feed(Event.DECODE_ADMITTED)
    assert (machine.state, machine.decode_attempts) == (State.DECODING_DIRECT, 1)


def test_recompute_policy_never_hides_a_client_fault() -> None:
    machine = RequestMachine(Policy(prefill_failure="recompute", prefill_attempts=1))
    machine.feed(Event.RENDERED)
    assert machine.after_prefill_failure(retry_safe=True, client_fault=False) is Event.PREFILL_RECOMPUTE
    assert machine.after_unusable_prefill() is Event.PREFILL_RECOMPUTE
    assert machine.after_prefill_failure(retry_safe=True, client_fault=True) is Event.PREFILL_FAILED


def test_a_recalled_prefill_is_never_repeated_or_recomputed() -> None:
    machine = RequestMachine(Policy(prefill_failure="recompute", prefill_attempts=9))
    machine.feed(Event.RENDERED)
    assert machine.prefilled() is Event.PREFILLED
    machine.feed(Event.CLIENT_GONE)
    assert machine.after_prefill_failure(retry_safe=True, client_fault=False) is Event.PREFILL_FAILED
    assert machine.after_unusable_prefill() is Event.PREFILL_FAILED
    assert machine.prefilled() is Event.ABORT_TOO_LATE


def advance(machine: RequestMachine, *events: Event) -> RequestMachine:
    for event in events:
        machine.feed(event)
    return machine


PD_DECODING = (Event.RENDERED, Event.PREFILLED, Event.DECODE_ADMITTED)


def test_decode_failures_in_pd_mode_go_back_to_prefill_with_attempts_of_its_own() -> None:
    machine = advance(RequestMachine(Policy(decode_attempts=2, prefill_attempts=1)), *PD_DECODING)
    assert machine.after_decode_failure(retry_safe=False) is Event.DECODE_FAILED
    assert machine.after_decode_failure(retry_safe=True) is Event.DECODE_RETRY
    advance(machine, Event.DECODE_RETRY)
    assert machine.prefill_attempts == 1
    advance(machine, Event.PREFILLED, Event.DECODE_ADMITTED)
    assert machine.after_decode_failure(retry_safe=True) is Event.DECODE_FAILED


@pytest.mark.parametrize(
    ("encoded", "again"),
    [(Event.ENCODED, Event.DECODE_RETRY), (Event.ENCODED_DIRECT, Event.DECODE_RETRY_DIRECT)],
)
def test_what_follows_on_the_encoders_knows_its_way(encoded: Event, again: Event) -> None:
    machine = advance(RequestMachine(Policy()), Event.RENDERED_TO_ENCODE, encoded)
    if encoded is Event.ENCODED:
        advance(machine, Event.PREFILLED)
    advance(machine, Event.DECODE_ADMITTED)
    assert machine.after_decode_failure(retry_safe=True) is again


def test_decode_failures_without_prefill_are_repeated_directly() -> None:
    machine = advance(
        RequestMachine(Policy()), Event.RENDERED_DIRECT, Event.DECODE_ADMITTED, Event.FIRST_TOKEN
    )
    assert machine.after_decode_failure(retry_safe=True) is Event.DECODE_RETRY_DIRECT
    recomputing = advance(
        RequestMachine(Policy()), Event.RENDERED, Event.PREFILL_RECOMPUTE, Event.DECODE_ADMITTED
    )
    assert recomputing.after_decode_failure(retry_safe=True) is Event.DECODE_RETRY_DIRECT


@pytest.mark.parametrize("last", [(Event.FIRST_TOKEN, Event.VISIBLE), (Event.CLIENT_GONE,)], ids=str)
def test_nothing_is_retried_after_visible_output_or_without_a_client(last: tuple[Event, ...]) -> None:
    machine = advance(RequestMachine(Policy(decode_attempts=9)), *PD_DECODING, *last)
    assert machine.after_decode_failure(retry_safe=True) is Event.DECODE_FAILED


def test_lease_end_is_retried_while_attempts_last_and_a_client_waits() -> None:
    machine = advance(RequestMachine(Policy(prefill_attempts=2)), *PD_DECODING)
    assert machine.after_lease_end() is Event.LEASE_RETRY
    advance(machine, Event.LEASE_RETRY, Event.PREFILLED, Event.DECODE_ADMITTED)
    assert machine.after_lease_end() is Event.LEASE_LOST
    drained = advance(RequestMachine(Policy(prefill_attempts=9)), *PD_DECODING, Event.CLIENT_GONE)
    assert drained.after_lease_end() is Event.LEASE_LOST


VISIBLE_OUTPUT = (*PD_DECODING, Event.FIRST_TOKEN, Event.VISIBLE)


def test_continuation_after_visible_output_is_off_by_default_and_counted() -> None:
    off = advance(RequestMachine(Policy()), *VISIBLE_OUTPUT)
    assert off.after_decode_failure(retry_safe=True, continuable=True) is Event.DECODE_FAILED
    machine = advance(RequestMachine(Policy(continuations=1)), *VISIBLE_OUTPUT)
    assert machine.after_decode_failure(retry_safe=True, continuable=False) is Event.DECODE_FAILED
    assert machine.after_decode_failure(retry_safe=True, continuable=True) is Event.DECODE_RESUME
    advance(machine, Event.DECODE_RESUME, Event.PREFILLED, Event.DECODE_ADMITTED)
    assert machine.first_token() is Event.RESUMED
    assert machine.after_decode_failure(retry_safe=True) is Event.DECODE_RETRY, "nothing new was seen"
    advance(machine, Event.RESUMED)
    assert machine.state is State.STREAMING
    assert machine.after_decode_failure(retry_safe=True, continuable=True) is Event.DECODE_FAILED


def test_continuation_without_prefill_goes_straight_to_decode() -> None:
    machine = advance(
        RequestMachine(Policy(continuations=2)),
        Event.RENDERED_DIRECT, Event.DECODE_ADMITTED, Event.FIRST_TOKEN, Event.VISIBLE,
    )  # fmt: skip
    assert machine.after_decode_failure(retry_safe=False, continuable=True) is Event.DECODE_RESUME_DIRECT


def test_a_run_that_has_not_gone_on_elsewhere_has_an_ordinary_first_token() -> None:
    assert advance(RequestMachine(Policy(continuations=1)), *PD_DECODING).first_token() is Event.FIRST_TOKEN
    direct = advance(RequestMachine(Policy(continuations=1)),
                     Event.RENDERED_DIRECT, Event.DECODE_ADMITTED, Event.FIRST_TOKEN, Event.VISIBLE,
                     Event.DECODE_RESUME_DIRECT, Event.DECODE_ADMITTED)  # fmt: skip
    assert direct.first_token() is Event.RESUMED
    gone = advance(RequestMachine(Policy(continuations=1)), *VISIBLE_OUTPUT, Event.DECODE_RESUME,
                   Event.PREFILLED, Event.DECODE_ADMITTED, Event.CLIENT_GONE)  # fmt: skip
    assert gone.first_token() is Event.FIRST_TOKEN, "draining"


def test_repr_shows_state_and_attempts() -> None:
    machine = advance(RequestMachine(Policy()), *PD_DECODING)
    assert repr(machine) == "<RequestMachine decoding prefill=1 decode=1>"
    assert not machine.over


def test_the_page_in_the_docs_is_what_the_tables_say() -> None:
    page = request_machine_diagram.PAGE.read_text(encoding="utf-8")
    assert page == request_machine_diagram.page(), "run scripts/request_machine_diagram.py"
