"""Pools: choosing, breakers, background health."""

from __future__ import annotations

import asyncio

from orchestrator.pool.health import HealthMonitor
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


async def test_an_idle_death_is_noticed_before_the_next_request() -> None:
    members = pool("a", "b")
    alive = {"a": True, "b": True}
    probed = asyncio.Event()

    async def probe(url: str) -> bool:
        probed.set()
        return alive[url]

    monitor = HealthMonitor([members], probe, interval=0.01)
    assert not members.ready
    watching = asyncio.create_task(monitor.run())
    await probed.wait()
    await monitor.check_all()
    assert members.ready
    alive["a"] = False
    await monitor.check_all()
    assert {members.choose().url for _ in range(4)} == {"b"}  # type: ignore[union-attr]
    assert members.ready
    alive["b"] = False
    await monitor.check_all()
    assert not members.ready
    assert members.choose() is None, "dead by its probe is another thing than an open breaker"
    watching.cancel()
    await asyncio.wait([watching])
