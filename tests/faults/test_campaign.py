"""The randomized fault campaign (`campaign.py`).

FAULT_REQUESTS (default 400) requests with FAULT_SEED (default: drawn anew, and printed); 5,000 of them by
`make fault-campaign`. A failing request is named with its seed and number: FAULT_SEED=… FAULT_ONLY=… runs it
alone.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.campaign import SETTINGS, Campaign, Case
from tests.orchestrator.conftest import launched

REQUESTS = int(os.environ.get("FAULT_REQUESTS", "400"))
SEED = int(os.environ.get("FAULT_SEED") or random.randrange(2**32))
ONLY = os.environ.get("FAULT_ONLY")


@pytest.mark.timeout(120 + REQUESTS)
@pytest.mark.parametrize("held_kv", ["free", "lease"])
async def test_every_request_has_its_answer_or_one_honest_error_and_leaves_nothing(held_kv: str) -> None:
    half = REQUESTS // 2
    numbers = [int(ONLY)] if ONLY else list(range(half) if held_kv == "free" else range(half, REQUESTS))
    print(f"\nFAULT_SEED={SEED} requests {numbers[0]}-{numbers[-1]}")
    policy = {"held_kv": held_kv, "abort_decode": "first_token", "continuations": 0}
    if held_kv == "lease":
        policy |= {"abort_decode": "at_once", "continuations": 1}
    limits = {"admission": {"decode_per_member": 8}}
    settings = SETTINGS | {"policy": policy} | limits
    async with launched(render=2, prefill=2, decode=3, pace=0.004, settings=settings) as stack:
        campaign = Campaign(stack, SEED, kills=ONLY is None)
        await campaign.run(numbers)
        print(dict(campaign.outcomes))
        assert not campaign.failures, "\n".join(
            [f"FAULT_SEED={SEED}: {len(campaign.failures)} wrong", *campaign.failures[:5]]
        )
        await stack.settled()
        metrics = stack.services.metrics
        outcomes = {
            sample.labels["outcome"]: sample.value
            for metric in metrics.requests.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }
        assert sum(outcomes.values()) <= len(numbers), "an outcome was counted twice"
        left = campaign.outcomes["client left"]
        assert sum(outcomes.values()) >= len(numbers) - left, "a request has no outcome"
        assert "abandoned" not in outcomes


def test_a_case_is_the_same_each_time_it_is_made() -> None:
    first, again = Case(7, 3), Case(7, 3)
    assert str(first) == str(again)
    assert first.faults == again.faults
