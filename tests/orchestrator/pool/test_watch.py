"""Background looks: at once, after an interval, when something happened, and never after the end."""

from __future__ import annotations

import asyncio

from orchestrator.core.breaker import Breaker
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.pool.watch import Watch

POOL = Pool("decode", (), "round_robin", breaker_threshold=1, breaker_cooldown=1,
            clock=lambda: 0.0, draw=lambda n: 0)  # fmt: skip


class Looks:
    def __init__(self) -> None:
        self.count = 0
        self.happened = asyncio.Event()

    async def __call__(self, _pool: Pool, _member: Member) -> None:
        self.count += 1
        self.happened.set()

    async def next(self) -> None:
        await self.happened.wait()
        self.happened.clear()


async def test_a_member_is_looked_at_again_and_again() -> None:
    looks, member = Looks(), Member("a", Breaker(1, 1))
    watch = Watch(looks, interval=0.001)
    watch.begin(POOL, member, at_once=False)
    watch.begin(POOL, member, at_once=False)
    for _ in range(3):
        await looks.next()
    await watch.close()


async def test_a_look_at_once_and_soon_do_not_wait_for_the_interval() -> None:
    looks, member = Looks(), Member("a", Breaker(1, 1))
    watch = Watch(looks, interval=3)
    watch.begin(POOL, member, at_once=True)
    await looks.next()
    for _ in range(100):
        watch.soon(member)
    await looks.next()
    assert looks.count == 2, "not one for each"
    watch.end(member)
    watch.soon(member)
    await asyncio.sleep(0)
    await watch.close()
    assert looks.count == 2
