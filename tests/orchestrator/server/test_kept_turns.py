"""KV of a turn that decode keeps is read by the next turn's prefill, where the prompt extends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import GENERATE, Answer, Status

KEPT = 600.0
"""Seconds."""
FIRST = [1 + i % 9 for i in range(100)]
ON: dict[str, Any] = {"declared": {"engines": {"turn_seconds": KEPT, "block_size": 16}}}


def declared(**facts: Any) -> dict[str, Any]:
    return {"declared": {"engines": {"turn_seconds": KEPT, "block_size": 16} | facts}}


async def complete(
    stack: Stack, prompt: list[int], headers: dict[str, str] | None = None, **options: Any
) -> list[int]:
    """The prompt with the output's IDs. A word of n letters is rendered as token n."""
    for tier in stack.decode:
        tier.keeps_turns = True
    body = {"model": "m", "prompt": " ".join("x" * token for token in prompt), "max_tokens": 4} | options
    response = await stack.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        return prompt
    text = response.json()["choices"][0]["text"]
    return prompt + [int(word.removeprefix("t")) for word in text.split()]


def read(stack: Stack) -> list[dict[str, Any] | None]:
    """Of each prefill: the params of kept KV that it was given."""
    legs = [leg["kv_transfer_params"] for tier in stack.prefill for leg in tier.requests[GENERATE]]
    return [params if params["remote_block_ids"] else None for params in legs]


def results(stack: Stack, counter: str = "turn_reuse") -> dict[str, float]:
    [family] = getattr(stack.services.metrics, counter).collect()
    return {s.labels["result"]: s.value for s in family.samples if s.name.endswith("_total") and s.value}


async def test_three_turns(launch: Launch) -> None:
    async with launch(settings=ON) as stack:
        conversation = FIRST
        lengths = []
        for _ in range(3):
            conversation = [*await complete(stack, conversation), 5, 6, 7]
            lengths.append(len(conversation))
        first, second, third = read(stack)
        assert first is None
        assert second is not None
        assert third is not None
        # All but the last sampled token, which no KV was computed for.
        assert second["remote_num_tokens"] == lengths[0] - 4
        assert third["remote_num_tokens"] == lengths[1] - 4
        assert (second["do_remote_decode"], second["do_remote_prefill"]) == (True, False)
        assert results(stack) == {"nothing_held": 1, "used": 2}
        assert results(stack, "kept_turns") == {"kept": 3}
        assert len(stack.decode[0].kept) == 1, "what the third turn left"
        await stack.settled()


async def test_a_template_that_drops_the_thinking(launch: Launch) -> None:
    """The generation prompt opens the reasoning, and the history that the client sends has none of it."""
    async with launch(settings=ON) as stack:
        thinking = [*FIRST, 42, 43]
        output = (await complete(stack, thinking))[len(thinking) :]
        await complete(stack, [*FIRST, *output, 5, 6, 7])
        assert read(stack) == [None, None]
        assert results(stack) == {"nothing_held": 1, "not_a_prefix": 1}
        await stack.settled()


@pytest.mark.parametrize("by", ["header", "salt"])
async def test_nobody_reads_anothers(launch: Launch, by: str) -> None:
    def own(name: str) -> dict[str, Any]:
        return {"headers": {"X-Tenant-Id": name}} if by == "header" else {"cache_salt": name}

    async with launch(settings=ON) as stack:
        turn = [*await complete(stack, FIRST, **own("one")), 5]
        await complete(stack, turn, **own("two"))
        assert read(stack) == [None, None]
        await complete(stack, turn, **own("one"))
        assert read(stack)[2] is not None
        assert results(stack) == {"nothing_held": 2, "used": 1}


async def test_a_turn_is_read_once(launch: Launch) -> None:
    async with launch(settings=ON) as stack:
        turn = [*await complete(stack, FIRST), 5]
        await asyncio.gather(complete(stack, turn), complete(stack, turn))
        assert [params is not None for params in read(stack)].count(True) == 1
        await stack.settled()


async def test_an_engine_that_tells_of_the_same_kv_again_is_not_believed(launch: Launch) -> None:
    async with launch(settings=ON) as stack:
        turn = [*await complete(stack, FIRST), 5]
        params = stack.decode[0].turn_params(next(iter(stack.decode[0].kept)))
        await complete(stack, turn)
        again = params | {"remote_num_tokens": len(turn) - 2}
        stack.decode[0].faults[GENERATE].append(Answer({"kv_transfer_params": again}))
        await complete(stack, FIRST)
        await complete(stack, turn)
        assert results(stack) == {"nothing_held": 1, "used": 1, "not_a_prefix": 1, "given_before": 1}
        await stack.settled()


async def test_kv_that_cannot_be_read_is_computed(launch: Launch) -> None:
    """The decode engine has dropped it, and the prefill engine says 500; the attempt does not count."""
    once = {"policy": {"prefill_attempts": 1}, "health": {"breaker_threshold": 1}}
    async with launch(settings=ON | once) as stack:
        turn = [*await complete(stack, FIRST), 5]
        stack.decode[0].kept.clear()
        await complete(stack, turn)
        assert [params is not None for params in read(stack)] == [False, True, False]
        assert results(stack) == {"nothing_held": 1, "used": 1, "not_read": 1}
        [member] = stack.services.prefill_pool.members
        assert not member.breaker.is_open(stack.services.now())
        await stack.settled()


async def test_a_busy_prefill_engine_has_not_failed_to_read(launch: Launch) -> None:
    async with launch(settings=ON) as stack:
        turn = [*await complete(stack, FIRST), 5]
        stack.prefill[0].faults[GENERATE].append(Status(503))
        await complete(stack, turn)
        assert [params is not None for params in read(stack)] == [False, True, False]
        assert results(stack) == {"nothing_held": 1, "used": 1}


async def test_an_engine_that_has_died_holds_nothing(launch: Launch) -> None:
    async with launch(decode=2, settings=ON) as stack:
        turn = [*await complete(stack, FIRST), 5]
        [holder] = [tier for tier in stack.decode if tier.kept]
        await holder.kill()
        await stack.services.check_health()
        await complete(stack, turn)
        await holder.revive()
        await stack.services.check_health()
        assert read(stack) == [None, None]
        assert results(stack) == {"nothing_held": 1, "engine_gone": 1}


async def test_a_turn_expires_well_before_it_goes(launch: Launch) -> None:
    """The last ten seconds are the engine's."""
    async with launch(settings=declared(turn_seconds=10.001)) as stack:
        turn = [*await complete(stack, FIRST), 5]
        await asyncio.sleep(0.01)
        await complete(stack, turn)
        assert results(stack) == {"nothing_held": 1, "expired": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"declared": {"engines": {"block_size": 16}, "prefill": {"turn_seconds": KEPT}}},
        {"declared": {"engines": {"block_size": 16}, "decode": {"turn_seconds": KEPT}}},
        ON | {"turns": {"reuse": False}},
    ],
    ids=["nothing known", "prefill alone", "decode alone", "switched off"],
)
async def test_only_where_both_engines_can(launch: Launch, settings: dict[str, Any]) -> None:
    async with launch(settings=settings) as stack:
        turn = [*await complete(stack, FIRST), 5]
        await complete(stack, turn)
        assert read(stack) == [None, None]
        assert "used" not in results(stack)


@pytest.mark.parametrize("looked_at", [{"stream": True}, {"stop": ["never"]}], ids=str)
async def test_what_is_looked_at_as_it_comes_leaves_nothing(
    launch: Launch, looked_at: dict[str, Any]
) -> None:
    """Engines tell what they keep in whole answers only."""
    async with launch(settings=ON) as stack:
        await complete(stack, FIRST, **looked_at)
        assert stack.decode[0].requests[GENERATE][0]["stream"] is True
        assert results(stack, "kept_turns") == {}
        await stack.settled()


async def test_a_stream_reads_what_a_whole_answer_has_left(launch: Launch) -> None:
    async with launch(settings=ON) as stack:
        turn = [*await complete(stack, FIRST), 5]
        await complete(stack, turn, stream=True)
        assert results(stack) == {"nothing_held": 1, "used": 1}


async def test_a_whole_answer_may_take_longer_than_a_first_token(launch: Launch) -> None:
    async with launch(settings=ON | {"timeouts": {"decode_first": 0.05}}) as stack:
        stack.decode[0].hold.clear()
        asked = asyncio.create_task(complete(stack, FIRST))
        await stack.decode[0].waiting.wait()
        await asyncio.sleep(0.1)
        stack.decode[0].hold.set()
        assert (await asked)[-1] == 103


async def test_prompt_logprobs_are_computed(launch: Launch) -> None:
    async with launch(settings=ON) as stack:
        turn = [*await complete(stack, FIRST, prompt_logprobs=1), 5]
        await complete(stack, turn, prompt_logprobs=1)
        assert read(stack) == [None, None]
        decodes = stack.decode[0].requests[GENERATE]
        assert not [leg for leg in decodes if "prompt_logprobs" in leg["sampling_params"]]


@pytest.mark.parametrize("change", [{"remote_num_tokens": 500}, {"remote_block_ids": [[1], [2]]}], ids=str)
async def test_params_that_are_not_understood(launch: Launch, change: dict[str, Any]) -> None:
    async with launch(settings=ON) as stack:
        params = {**_params(stack), **change}
        stack.decode[0].faults[GENERATE].append(Answer({"kv_transfer_params": params}))
        await complete(stack, FIRST)
        assert results(stack, "kept_turns") == {"unusable": 1}
        await stack.settled()


def _params(stack: Stack) -> dict[str, Any]:
    stack.decode[0].kept["r"] = FIRST
    return stack.decode[0].turn_params("r")
