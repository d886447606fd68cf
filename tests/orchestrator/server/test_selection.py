"""Affinity, conditional disaggregation and the decision record through the real shell."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import GENERATE, HalfClose, Tier

BLOCKS = {"prefix_block_tokens": 4}


def words(name: str, count: int = 16) -> str:
    """A prompt of ``count`` tokens that differs from another name's in its first one."""
    return " ".join(["x" * len(name), *["yy"] * (count - 1)])


async def ask(stack: Stack, content: str = "one two", **headers: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3}
    return await stack.http.post("/v1/chat/completions", json=body, headers=headers)


def served(tiers: list[Tier]) -> list[int]:
    return [len(tier.requests[GENERATE]) for tier in tiers]


MANY = 40
"""Ports, and so the places of members, are random: of so many, each of three members gets one but once in
millions of runs."""


async def test_prompts_with_one_prefix_go_to_one_prefill_member(launch: Launch) -> None:
    async with launch(prefill=3, settings={"selection": BLOCKS}) as stack:
        for i in range(5):
            assert (await ask(stack, words("a") + f" tail{'z' * i}")).status_code == 200
        assert sorted(served(stack.prefill)) == [0, 0, 5]
        for i in range(MANY):
            await ask(stack, words("a" * (i + 2)))
        assert min(served(stack.prefill)) > 0, "others are spread"


async def test_a_prefix_moves_when_its_member_fails_and_stays_there(launch: Launch) -> None:
    async with launch(prefill=2, settings={"selection": BLOCKS}) as stack:
        await ask(stack, words("a"))
        home = stack.prefill[served(stack.prefill).index(1)]
        other = next(tier for tier in stack.prefill if tier is not home)
        home.healthy = False
        await stack.services.check_health()
        for _ in range(2):
            assert (await ask(stack, words("a"))).status_code == 200
        assert served([home, other]) == [1, 2]
        home.healthy = True
        await stack.services.check_health()
        await ask(stack, words("a"))
        assert served([home, other]) == [1, 3], "it came back without its cache"


async def test_sessions_stay_on_one_decode_member(launch: Launch) -> None:
    async with launch(decode=3, settings={"selection": {"decode": "session_affinity"}}) as stack:
        for _ in range(4):
            await ask(stack, **{"X-Session-ID": "s1"})
        assert sorted(served(stack.decode)) == [0, 0, 4]
        for i in range(MANY):
            await ask(stack, **{"X-Session-ID": f"other{i}"})
        assert min(served(stack.decode)) > 0


async def test_a_prompt_mostly_cached_on_decode_skips_remote_prefill(launch: Launch) -> None:
    """A long prompt whose KV is already on a decode member is not sent to prefill again."""
    settings = {"selection": BLOCKS, "policy": {"skip_prefill_below_uncached_tokens": 10}}
    async with launch(decode=3, settings=settings) as stack:
        await ask(stack, words("a", 32))
        assert served(stack.prefill) == [1]
        home = served(stack.decode).index(1)
        for _ in range(3):
            response = await ask(stack, words("a", 38))
            assert response.status_code == 200
        assert served(stack.prefill) == [1]
        assert served(stack.decode)[home] == 4
        await ask(stack, words("a", 32) + " longer" * 30)
        assert served(stack.prefill) == [2], "too much of it is new"
        await stack.settled()


async def test_a_member_whose_cache_is_not_what_was_predicted_is_forgotten(launch: Launch) -> None:
    """The scripted decode engine reports 5 cached tokens, whatever it was given."""
    settings = {"selection": BLOCKS, "policy": {"skip_prefill_below_uncached_tokens": 10}}
    async with launch(settings=settings) as stack:
        await ask(stack, words("a", 32))
        await ask(stack, words("a", 32))
        metrics = stack.services.metrics
        assert metrics.predictions.labels("decode", "drifted")._value.get() == 1
        assert len(stack.services.decode_pool.index) == 8, "as far as the drifted request itself put it back"  # type: ignore[arg-type]


async def test_decisions_are_told_on_request(launch: Launch) -> None:
    async with launch(prefill=2, decode=2) as stack:
        assert "x-pd-decisions" not in (await ask(stack)).headers
        response = await ask(stack, **{"X-PD-Explain": "1"})
        decisions = json.loads(response.headers["x-pd-decisions"])
        assert [d["role"] for d in decisions] == ["render", "prefill", "decode"]
        prefill = decisions[1]
        assert prefill["winner"] in {tier.url for tier in stack.prefill}
        assert {c["member"] for c in prefill["candidates"]} == {tier.url for tier in stack.prefill}


@pytest.mark.parametrize("stream", [True, False])
async def test_decisions_of_retries_and_errors_are_told_too(launch: Launch, stream: bool) -> None:
    async with launch(decode=2) as stack:
        for tier in stack.decode:
            tier.faults[GENERATE] += [HalfClose()]
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "stream": stream}
        response = await stack.http.post("/v1/chat/completions", json=body, headers={"X-PD-Explain": "1"})
        assert response.status_code == 503
        decisions = json.loads(response.headers["x-pd-decisions"])
        decodes = [d for d in decisions if d["role"] == "decode"]
        assert len({d["winner"] for d in decodes}) == 2
        assert any(c["tried"] for c in decodes[1]["candidates"])
