"""Engines that are paused while their weights are exchanged: they drain, and are not failed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import CHAT, GENERATE, Answer, Tier

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4}

READ_EVERY_TIME = {"parity": {"recheck": 0.001}}
"""Else what was not there at the start is found after half a minute."""


async def look(stack: Stack) -> None:
    """What a background look at every member does when its interval is over."""
    await stack.services.check_health()


def pause(*tiers: Tier) -> None:
    for tier in tiers:
        tier.paused = True
        tier.hold.clear()


def resume(*tiers: Tier) -> None:
    for tier in tiers:
        tier.paused = False
        tier.hold.set()


def states(stack: Stack) -> dict[str, str]:
    pools = (stack.services.prefill_pool, stack.services.decode_pool)
    return {Tier.peers[name].name: m.state for pool in pools for m in pool.members for name in [named(m.url)]}


def named(url: str) -> str:
    return next(name for name, tier in Tier.peers.items() if tier.url == url)


async def ask(stack: Stack) -> httpx.Response:
    return await stack.http.post(CHAT, json=ASK)


async def test_new_work_goes_elsewhere_and_what_runs_is_finished(launch: Launch) -> None:
    async with launch(prefill=2, decode=2, settings=READ_EVERY_TIME) as stack:
        for tier in (*stack.prefill, *stack.decode):
            tier.paused = False
        await look(stack)
        held = stack.decode[0]
        held.hold.clear()
        running = [asyncio.create_task(ask(stack)) for _ in range(4)]
        await until(lambda: sum(len(t.requests[GENERATE]) for t in stack.decode) == 4)
        begun = len(held.requests[GENERATE])
        pause(stack.prefill[0], held)
        await look(stack)
        assert states(stack) == {"p0": "paused", "p1": "in", "d0": "paused", "d1": "in"}
        prefills = len(stack.prefill[0].requests[GENERATE])
        for _ in range(4):
            assert (await ask(stack)).status_code == 200
        assert len(stack.prefill[0].requests[GENERATE]) == prefills
        assert len(held.requests[GENERATE]) == begun
        resume(stack.prefill[0], held)
        assert {(await answer).status_code for answer in running} == {200}
        await look(stack)
        assert set(states(stack).values()) == {"in"}
        await stack.settled()


async def test_while_all_are_paused_work_waits_for_them(launch: Launch) -> None:
    async with launch(settings=READ_EVERY_TIME) as stack:
        engines = (*stack.prefill, *stack.decode)
        pause(*engines)
        await look(stack)
        assert set(states(stack).values()) == {"paused"}
        waiting = asyncio.create_task(ask(stack))
        await stack.prefill[0].waiting.wait()
        late = await stack.http.post(CHAT, json=ASK, headers={"X-Request-Timeout": "0.2"})
        assert late.status_code == 504
        resume(*engines)
        assert (await waiting).status_code == 200
        await stack.settled()


async def test_what_a_pause_has_aborted_is_begun_again_and_breaks_nothing(launch: Launch) -> None:
    """An engine that is paused ends what it runs, before anybody has looked at it again."""
    async with launch(prefill=2, decode=2, settings={"health": {"breaker_threshold": 1}}) as stack:
        aborted = Answer({"kv_transfer_params": None}, finish_reason="abort")
        faults = {"prefill": [aborted], "decode": [aborted]}
        for role, tiers in (("prefill", stack.prefill), ("decode", stack.decode)):
            left = faults[role]
            for tier in tiers:
                tier.plan = lambda _path, _body, left=left: left.pop() if left else None
        answer = await stack.http.post(CHAT, json=ASK | {"max_tokens": 1 + 1})
        assert answer.status_code == 200
        assert not faults["prefill"]
        assert not faults["decode"]
        now = asyncio.get_running_loop().time()
        pools = (stack.services.prefill_pool, stack.services.decode_pool)
        assert not any(member.breaker.is_open(now) for pool in pools for member in pool.members)
        await stack.settled()
