"""Pools: choosing, breakers, coming and going."""

from __future__ import annotations

from orchestrator.core.breaker import Breaker
from orchestrator.core.capabilities import Capabilities, Facts
from orchestrator.core.parity import Difference
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pool(*urls: str, clock: Clock | None = None) -> Pool:
    return Pool("decode", urls, "round_robin", breaker_threshold=2, breaker_cooldown=5,
                clock=clock or Clock(), draw=lambda n: 0)  # fmt: skip


def test_an_empty_pool_gives_nobody() -> None:
    assert pool().choose() is None
    assert not pool()


def test_members_take_turns_and_the_tried_are_avoided() -> None:
    members = pool("a", "b")
    assert [members.choose().url for _ in range(4)] == ["a", "b", "a", "b"]  # type: ignore[union-attr]
    assert {members.choose(tried={"a"}).url for _ in range(3)} == {"b"}  # type: ignore[union-attr]


def test_failures_open_a_breaker_until_the_cooldown_and_never_the_last_one() -> None:
    clock = Clock()
    members = pool("a", "b", clock=clock)
    a, b = members.members
    for _ in range(2):
        members.failed(a)
    assert {members.choose().url for _ in range(4)} == {"b"}  # type: ignore[union-attr]
    for _ in range(2):
        members.failed(b)
    assert {members.choose().url for _ in range(4)} == {"a", "b"}  # type: ignore[union-attr]
    clock.now = 6
    members.succeeded(a)
    members.failed(b)
    assert {members.choose().url for _ in range(4)} == {"a"}  # type: ignore[union-attr]


def test_a_dead_member_is_not_asked_unless_its_role_asks_the_dead() -> None:
    for asks in (False, True):
        members = Pool("render", ["a", "b"], "round_robin", breaker_threshold=2, breaker_cooldown=5,
                       clock=Clock(), draw=lambda n: 0, asks_the_dead=asks)  # fmt: skip
        a, b = members.members
        a.probed = False
        members.failed(b)
        members.failed(b)
        assert members.choose({"b"}) is b, "a breaker gives way to a death"
        b.probed = False
        assert members.available is asks
        assert (members.choose() is not None) is asks


def test_new_work_goes_to_the_welcome_and_what_was_begun_is_finished_by_whoever_can() -> None:
    members = pool("a", "b")
    a, b = members.members
    a.draining = True
    assert {members.choose().url for _ in range(3)} == {"b"}  # type: ignore[union-attr]
    assert members.well == 1
    b.draining = True
    assert members.choose() is None
    assert not members.available
    assert members.choose(finishing=True) is not None
    a.admitted = False
    assert {members.choose(finishing=True).url for _ in range(3)} == {"b"}  # type: ignore[union-attr]


def test_one_that_leaves_is_forgotten_when_it_has_nothing_to_do() -> None:
    members = pool("a", "b")
    a = next(iter(members.members))
    with a.busy():
        assert members.leave("a") is a
        members.sweep()
        assert members.leaving == [a]
        assert {members.choose().url for _ in range(3)} == {"b"}  # type: ignore[union-attr]
        assert members.choose(suits=lambda member: member.url == "a") is None
        assert members.choose(suits=lambda member: member.url == "a", finishing=True) is a
    a.leases = 1
    members.sweep()
    assert members.leaving, "it holds KV that somebody will pull"
    a.leases = 0
    members.sweep()
    assert not members.leaving


def test_one_that_comes_back_while_it_leaves_is_the_same_member_unless_its_generation_changed() -> None:
    members = pool("a")
    [a] = members.members
    with a.busy():
        members.leave("a")
        assert members.join("a") is a
        members.leave("a")
        other = members.join("a", "2")
        assert other is not a
        assert members.generations == {"2"}
        assert members.choose(suits=lambda m: m.generation == "", finishing=True) is a


def test_kv_is_pulled_within_a_generation_and_where_nothing_known_speaks_against_it() -> None:
    prefill, decode = Member("p", Breaker(1, 1)), Member("d", Breaker(1, 1))
    assert decode.pulls_from(prefill)
    prefill.capabilities = Capabilities(reported=Facts(block_size=16))
    decode.capabilities = Capabilities(declared=Facts(block_size=32))
    assert not decode.pulls_from(prefill)
    decode.capabilities = Capabilities()
    decode.generation = "2"
    assert not decode.pulls_from(prefill)


def test_a_member_is_in_one_state() -> None:
    member = Member("a", Breaker(1, 1))
    assert member.state == "joining"
    member.probed = True
    assert member.state == "in"
    member.draining = True
    assert member.state == "draining"
    member.differences = (Difference("dtype", "a", "b"),)
    assert member.state == "kept_out"
    member.probed = False
    assert member.state == "down"
    member.leaving = True
    assert member.state == "leaving"
