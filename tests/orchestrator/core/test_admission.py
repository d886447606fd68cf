"""Gates: bounds, turns among tenants, priorities within one, drain rate; and laws over random use."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.admission import DrainRate, Gate, QueueFull, Ticket


def gate(limit: int | None, waiting: int = 100, per_tenant: int = 100) -> Gate:
    return Gate("g", limit, max_waiting=waiting, max_waiting_per_tenant=per_tenant, memory=10.0)


class Line:
    """Enters a gate under names and notes who is let in."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.let_in: list[str] = []
        self.inside: list[Ticket] = []
        self.tickets: dict[str, Ticket] = {}

    def enter(self, name: str, tenant: str = "t", priority: int = 0) -> Ticket:
        ticket = self.gate.enter(tenant, priority, partial(self._granted, name))
        self.tickets[name] = ticket
        if ticket.state == "granted":
            self.inside.append(ticket)
        return ticket

    def _granted(self, name: str) -> None:
        self.let_in.append(name)
        self.inside.append(self.tickets[name])

    def next(self) -> str | None:
        """One leaves; who is let in."""
        count = len(self.let_in)
        self.gate.leave(self.inside.pop(0), now=0.0)
        return self.let_in[count] if len(self.let_in) > count else None


def test_without_a_limit_nobody_waits() -> None:
    line = Line(gate(None))
    assert {line.enter(str(i)).state for i in range(1000)} == {"granted"}
    assert not line.gate.full


def test_beyond_the_limit_tickets_wait_and_go_in_the_order_they_came() -> None:
    line = Line(gate(1))
    line.enter("running")
    for name in "abc":
        assert line.enter(name).state == "waiting"
    assert [line.next() for _ in range(4)] == ["a", "b", "c", None]
    assert repr(line.gate) == "<Gate g active=0/1 waiting=0>"


def test_tenants_take_turns_whatever_each_has_waiting() -> None:
    line = Line(gate(1))
    line.enter("running", "big")
    for i in range(6):
        line.enter(f"big{i}", "big")
    line.enter("small0", "small")
    line.enter("small1", "small")
    assert [line.next() for _ in range(5)] == ["big0", "small0", "big1", "small1", "big2"]


def test_a_tenant_that_comes_late_earns_no_credit_and_loses_no_turn() -> None:
    line = Line(gate(1))
    line.enter("running", "a")
    for i in range(6):
        line.enter(f"a{i}", "a")
    assert [line.next(), line.next()] == ["a0", "a1"]
    for i in range(3):
        line.enter(f"b{i}", "b")
    following = [line.next() for _ in range(4)]
    assert sorted(following) == ["a2", "a3", "b0", "b1"]


def test_priority_orders_a_tenants_own_work_only() -> None:
    line = Line(gate(1))
    line.enter("running", "a")
    line.enter("a-late", "a", priority=5)
    line.enter("b", "b", priority=0)
    line.enter("a-urgent", "a", priority=-100)
    line.enter("a-urgent2", "a", priority=-100)
    assert [line.next() for _ in range(4)] == ["a-urgent", "b", "a-urgent2", "a-late"]


def test_full_queues_say_whose_share_is_full() -> None:
    line = Line(gate(1, waiting=3, per_tenant=2))
    line.enter("running", "a")
    line.enter("a0", "a")
    line.enter("a1", "a")
    with pytest.raises(QueueFull) as own:
        line.enter("a2", "a")
    assert own.value.of_tenant
    assert not line.gate.full
    line.enter("b0", "b")
    assert line.gate.full
    with pytest.raises(QueueFull) as whole:
        line.enter("c0", "c")
    assert not whole.value.of_tenant


def test_a_ticket_given_up_while_it_waits_frees_its_place_and_is_never_let_in() -> None:
    line = Line(gate(1, waiting=2, per_tenant=2))
    line.enter("running")
    gone = line.enter("gone")
    line.enter("b")
    for _ in range(2):
        line.gate.leave(gone, 0.0)
    line.enter("c")
    assert [line.next() for _ in range(3)] == ["b", "c", None]


def test_tickets_given_up_do_not_pile_up_behind_a_gate_that_stands_still() -> None:
    line = Line(gate(1))
    line.enter("running")
    stays = line.enter("stays")
    for i in range(1000):
        line.gate.leave(line.enter(str(i)), 0.0)
    assert sum(len(queue) for queue in line.gate._queues.values()) < 20
    assert line.next() == "stays"
    assert stays.state == "granted"


def test_a_ticket_is_left_once() -> None:
    line = Line(gate(1))
    ticket = line.enter("a")
    for _ in range(3):
        line.gate.leave(ticket, 0.0)
    assert line.gate.active == 0


def test_a_raised_limit_lets_the_waiting_in_and_a_lowered_one_lets_the_running_end() -> None:
    line = Line(gate(1))
    for name in "abcd":
        line.enter(name)
    line.gate.set_limit(3)
    assert line.let_in == ["b", "c"]
    line.gate.set_limit(1)
    assert [line.next(), line.next(), line.next()] == [None, None, "d"]


def test_drain_rate_of_steady_departures() -> None:
    drain = DrainRate(10.0)
    assert drain.rate(0.0) is None
    for i in range(1, 201):
        drain.note(i * 0.25)
    rate = drain.rate(50.0)
    assert rate == pytest.approx(4.0, rel=0.1)
    assert drain.rate(100.0) < rate / 50, "it fades when nothing leaves"  # type: ignore[operator]


def test_a_young_drain_rate_is_already_right() -> None:
    drain = DrainRate(30.0)
    for i in range(5):
        drain.note(100.0 + i)
    assert drain.rate(104.0) == pytest.approx(1.25, rel=0.1)


def test_retry_after_is_the_queue_over_the_rate_within_bounds() -> None:
    line = Line(gate(1))
    assert line.gate.retry_after(0.0, unknown=7, longest=60) == 7
    line.enter("running")
    for i in range(20):
        line.enter(str(i))
    for i in range(10):
        line.gate.leave(line.inside.pop(0), float(i))
    # 10 left in 9 seconds, 10 wait.
    assert line.gate.retry_after(9.0, unknown=7, longest=60) in (9, 10, 11)
    assert line.gate.retry_after(9.0, unknown=7, longest=3) == 3
    assert line.gate.retry_after(9.5e9, unknown=7, longest=60) == 7


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from("abc"), st.integers(-2, 2)),
        st.tuples(st.just("leave"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("limit"), st.integers(0, 4), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_laws_over_random_use(steps: list[tuple[str, object, int]]) -> None:
    limit = 2
    under_test = gate(limit, waiting=6, per_tenant=3)
    tickets: list[Ticket] = []
    called: list[int] = []
    for kind, what, priority in steps:
        if kind == "enter":
            assert isinstance(what, str)
            number = len(tickets)
            try:
                tickets.append(under_test.enter(what, priority, partial(called.append, number)))
            except QueueFull:
                waiting = [t for t in tickets if t.state == "waiting"]
                assert len(waiting) == 6 or sum(t.tenant == what for t in waiting) == 3
        elif kind == "leave":
            assert isinstance(what, int)
            if tickets:
                under_test.leave(tickets[what % len(tickets)], 0.0)
        else:
            assert isinstance(what, int)
            limit = what
            under_test.set_limit(limit)
        states = [t.state for t in tickets]
        assert under_test.active == states.count("granted")
        assert under_test.waiting == states.count("waiting")
        assert not (under_test.waiting and under_test.active < limit), "nobody waits while there is room"
        assert len(called) == len(set(called))
    for ticket in tickets:
        under_test.leave(ticket, 0.0)
    assert repr(under_test) == f"<Gate g active=0/{limit} waiting=0>"
