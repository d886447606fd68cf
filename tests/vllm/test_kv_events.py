"""A real engine's cache events predict how many tokens it then reports as cached."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import zmq

from orchestrator.core.exact_index import LookedUp
from orchestrator.core.reported_cache import ReportedCache
from orchestrator.hops.kv_events import KvEventFollower, Limits
from tests.orchestrator.conftest import until
from tests.support.processes import ServerProcess

LIMITS = Limits(queued_messages=1000, message_bytes=2**20, replay_timeout=10.0)


async def cached_tokens(http: httpx.AsyncClient, token_ids: list[int], **more: str) -> int:
    body = {"token_ids": token_ids, "sampling_params": {"max_tokens": 1, "temperature": 0}, **more}
    response = await http.post("/inference/v1/generate", json=body)
    assert response.status_code == 200, response.text
    reported: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return reported


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "replayed"])
async def test_predictions_are_what_the_engine_finds(
    vllm_engine: ServerProcess, kv_event_ports: tuple[int, int], late: bool
) -> None:
    endpoint, replay = (f"tcp://127.0.0.1:{port}" for port in kv_event_ports)
    cache = ReportedCache(10_000, 8, 0.0)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    follower = KvEventFollower(vllm_engine.url, cache, context, endpoint, replay, "", LIMITS)
    task = asyncio.create_task(follower.run())
    first = 1000 + 5000 * late
    try:
        await until(lambda: cache.trusted)
        async with httpx.AsyncClient(base_url=vllm_engine.url, timeout=300) as http:
            found = []
            for length in (40, 200, 200, 333, 700, 150, 701):
                token_ids = [first + i for i in range(length)]
                predicted = cache.predict(LookedUp.of(token_ids, most=10_000))
                found.append(await cached_tokens(http, token_ids))
                assert predicted == found[-1]
                # Events of the blocks that were new follow the answer.
                whole = LookedUp.of([*token_ids, 0], most=10_000)
                await until(lambda whole=whole, n=length: (cache.predict(whole) or 0) > n - 129)
            assert max(found) > 0
            salted = [first + i for i in range(300)]
            for expected_hit in (False, True):
                looked_up = LookedUp.of(salted, most=10_000, salt="s")
                predicted = cache.predict(looked_up)
                reported = await cached_tokens(http, salted, cache_salt="s")
                assert predicted == reported
                assert bool(reported) == expected_hit
                await until(lambda asked=looked_up: bool(cache.predict(asked)))
        assert cache.trusted
        assert not cache.losses
    finally:
        task.cancel()
        await asyncio.wait([task])
        context.destroy(linger=0)
