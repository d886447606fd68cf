"""Memory that requests share: in turn, bounded, and nothing lost by those that give up."""

from __future__ import annotations

import asyncio

import pytest

from render_tier.server.memory_budget import MemoryBudget
from render_tier.server.pools import Overloaded


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_given_back_goes_to_who_waits_longest() -> None:
    budget = MemoryBudget(10, max_wait=10)
    await budget.take(8)
    large, small = (asyncio.create_task(budget.take(amount)) for amount in (9, 2))
    await settle()
    assert not large.done()
    assert not small.done()  # or a large one would never get its turn
    budget.give_back(8)
    await settle()
    assert large.done()
    assert not small.done()
    assert budget.held == 9
    budget.give_back(9)
    await small
    assert budget.held == 2


async def test_who_waits_too_long_is_refused() -> None:
    budget = MemoryBudget(10, max_wait=0.01)
    await budget.take(10)
    with pytest.raises(Overloaded):
        await budget.take(1)
    budget.give_back(10)
    await budget.take(10)


async def test_who_gives_up_makes_way_for_others() -> None:
    budget = MemoryBudget(10, max_wait=10)
    await budget.take(5)
    first, second = asyncio.create_task(budget.take(9)), asyncio.create_task(budget.take(5))
    await settle()
    first.cancel()
    await second
    assert budget.held == 10


async def test_who_gives_up_as_its_turn_comes_gives_it_back() -> None:
    budget = MemoryBudget(10, max_wait=10)
    await budget.take(10)
    waiting = asyncio.create_task(budget.take(4))
    await settle()
    budget.give_back(10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.held == 0


async def test_who_has_given_up_is_passed_over() -> None:
    """Told to end, it has not run yet when another one gives back."""
    budget = MemoryBudget(10, max_wait=10)
    await budget.take(10)
    leaving, staying = asyncio.create_task(budget.take(4)), asyncio.create_task(budget.take(10))
    await settle()
    leaving.cancel()
    budget.give_back(10)
    await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert budget.held == 10
    budget.give_back(10)
    assert budget.held == 0
