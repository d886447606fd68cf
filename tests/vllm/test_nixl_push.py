"""KV that the prefill engine pushes, with vLLM's `NixlPushConnector`, instead of being pulled by decode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.completions import ask, ask_all, body, client
from tests.support.pd_stack import (
    FREE,
    IDLE,
    Stack,
    becomes_free,
    eventually,
    everything_becomes_free,
    metric,
    pd_stack,
    pulled,
    stranded,
)
from tests.support.prompts import distinct_prompts

LENGTHS = (20, 47, 129, 255, 640, 1500)


@pytest.fixture(scope="module")
def pushing(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    logs = tmp_path_factory.mktemp("push")
    with pd_stack(smollm2_dir, logs, kv_connector="NixlPushConnector") as stack:
        yield stack


async def test_kv_that_is_pushed(pushing: Stack, smollm2_dir: Path) -> None:
    """Prefill finds the decode that waits for its KV by the id of the request."""
    prompts = distinct_prompts(smollm2_dir, LENGTHS)
    expected = await ask_all(pushing.together, prompts, False)
    for stream in (False, True):
        before = pulled(pushing)
        assert await ask_all(pushing.apart, prompts, stream) == expected
        assert pulled(pushing) - before >= sum(LENGTHS) - len(LENGTHS)
    async with client(pushing.apart) as http:
        likeliest = await ask(http, body(prompts[2], n=2, temperature=1, top_k=1), True)
    assert likeliest == [expected[2]] * 2
    everything_becomes_free(pushing)
    assert not stranded(pushing.apart)


async def test_a_client_that_leaves_before_its_kv_is_pushed(pushing: Stack, smollm2_dir: Path) -> None:
    """It is pushed to a decode of one token, and free."""
    [prompt] = distinct_prompts(smollm2_dir, (300,), seed=12)
    pushing.prefill_box.hold()
    async with client(pushing.watched) as http:
        request = asyncio.create_task(http.post("/completions", json=body(prompt)))
        await eventually(lambda: pushing.prefill_box.waiting == 1, "no answer is held")
        request.cancel()
        await asyncio.wait([request])
    await eventually(lambda: bool(pushing.prefill_box.aborted), "no abort was sent")
    pushing.prefill_box.release()
    everything_becomes_free(pushing)
    assert metric(pushing.watched, "pd_freed_kv_total") == 1
    assert not stranded(pushing.watched)


async def test_a_prefill_engine_that_dies_before_it_pushes(pushing: Stack, smollm2_dir: Path) -> None:
    """Decode, which has met it, would wait without end. It is aborted as soon as the death is known, and has
    a place for others then; the blocks of that one request it keeps. The prefill engine stays dead."""
    [prompt] = distinct_prompts(smollm2_dir, (300,), seed=15)
    pushing.prefill_box.reset()
    pushing.decode_box.reset()
    pushing.prefill_box.hold()
    async with client(pushing.watched) as http:
        asked = asyncio.create_task(http.post("/completions", json=body(prompt)))
        await eventually(lambda: pushing.prefill_box.waiting == 1, "no answer is held")
        pushing.pair.prefill.kill()
        pushing.prefill_box.release()
        reply = await asyncio.wait_for(asked, 60)
    assert reply.status_code == 503, reply.text
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    [leg] = pushing.decode_box.requests
    becomes_free((pushing.watched, IDLE), (pushing.pair.decode, FREE[:2]))
    assert pushing.decode_box.aborted == [f"generate-tokens-{leg['request_id']}"]
    assert metric(pushing.pair.decode, "vllm:kv_cache_usage_perc") > 0
    async with client(pushing.together) as http:
        [answer] = await ask(http, body(prompt), False)
    assert answer.token_ids
