"""A batch of the client library over the orchestrator: each sample once, whatever fails; groups evenly."""

from __future__ import annotations

from collections import Counter

from render_tier.client import AsyncClient, Retries
from tests.orchestrator.conftest import Launch
from tests.orchestrator.faults import CHAT, GENERATE, HalfClose, Status


async def test_each_sample_once_and_no_group_waits_for_another(launch: Launch) -> None:
    names = ["large"] * 20 + ["small"] * 3
    requests = [
        {"model": "m", "messages": [{"role": "user", "content": name}], "max_tokens": 3, "seed": 10 * i}
        for i, name in enumerate(names)
    ]
    settings = {"policy": {"render_attempts": 1, "prefill_attempts": 1, "decode_attempts": 1}}
    async with launch(settings=settings) as stack:
        stack.render.faults[f"{CHAT}/render"] += [None, Status(503), Status(503)]
        stack.prefill[0].faults[GENERATE] += [None, None, Status(503)]
        stack.decode[0].faults[GENERATE] += [None, HalfClose(1), None, HalfClose(2)]
        stack.render.faults[f"{CHAT}/derender"] += [None, HalfClose()]
        retries = Retries(attempts=8, pause=0.0, longest_pause=0.0)
        async with AsyncClient(stack.url, retries=retries) as client:
            batch = client.rollouts(requests, samples=2, concurrency=4, groups=names)
            rollouts = [rollout async for rollout in batch]
        assert Counter((r.prompt, r.number) for r in rollouts) == Counter(
            {(prompt, number): 1 for prompt in range(len(names)) for number in range(2)}
        )
        for rollout in rollouts:
            assert rollout.sample is not None
            first = 100 + 1000 * (10 * rollout.prompt + rollout.number)
            assert rollout.sample.output_token_ids == [first, first + 1, first + 2], "its own seed's"
        assert sum(rollout.attempts for rollout in rollouts) > len(rollouts)
        asked = [body["messages"][0]["content"] for body in stack.render.requests[f"{CHAT}/render"]]
        last = max(i for i, name in enumerate(asked) if name == "small")
        assert last < 24, "six of some fifty, that take turns with the others until they are over"
        await stack.settled()
