"""What real engines answer with silence, with another request's text, or by ending never comes about: neither
for what a client sends, nor for what an engine says. And whoever leaves at any moment leaves nothing behind,
or what is left is counted and ends with its lease.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from render_tier.protocol.generate import REQUIRED_REMOTE_FIELDS
from tests.support import vllm
from tests.support.completions import MODEL, Answer, ask, body, client
from tests.support.pd_stack import (
    FREE,
    FREE_WITHIN,
    IDLE,
    KV_BYTES_PER_TOKEN,
    LEASE_OVER_WITHIN,
    Stack,
    becomes_free,
    eventually,
    everything_becomes_free,
    generations,
    metric,
    stranded,
)
from tests.support.processes import ServerProcess, orchestrator_server

VOCABULARY = 49_152
ENGINE_LEASE = 30.0
"""Seconds; vLLM's default."""


@pytest.fixture(autouse=True)
def idle(stack: Stack) -> Iterator[None]:
    """After each test nothing is under way anywhere; only the prefill engine may hold what a test says."""
    yield
    for box in (stack.prefill_box, stack.decode_box):
        box.reset()
    becomes_free(
        *((orchestrator, IDLE) for orchestrator in stack.orchestrators),
        (stack.pair.decode, FREE),
        (stack.pair.prefill, FREE[:2]),
    )


async def leave(request: asyncio.Task[Any]) -> None:
    request.cancel()
    await asyncio.wait([request])


def more_stranded(stack: Stack, before: dict[str, float]) -> dict[str, float]:
    """Through the watched orchestrator, since then."""
    return {
        reason: count - before.get(reason, 0)
        for reason, count in stranded(stack.watched).items()
        if count > before.get(reason, 0)
    }


def noted(
    given: list[dict[str, Any]],
    _request: dict[str, Any],
    answer: dict[str, Any],
    instead: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """For a middlebox: the engine's transfer params go into `given`, and others are passed on `instead`."""
    given.append(answer["kv_transfer_params"])
    return answer if instead is None else answer | {"kv_transfer_params": instead()}


# ---- what must not reach an engine -------------------------------------------------------------------------


async def test_ids_outside_the_vocabulary_reach_no_engine(stack: Stack, prompts: list[list[int]]) -> None:
    """Either engine would end with the first one."""
    before = [generations(engine) for engine in stack.engines]
    async with client(stack.apart) as http:
        for alien in (VOCABULARY, 2**31, 2**63, -1):
            for stream in (False, True):
                sent = body([*prompts[0], alien], stream=stream)
                response = await http.post("/completions", json=sent)
                assert response.status_code == 400, (alien, response.text)
        for option in (
            {"stop_token_ids": [VOCABULARY], "min_tokens": 4},
            {"allowed_token_ids": [VOCABULARY]},
            {"logit_bias": {str(VOCABULARY): 1}},
        ):
            response = await http.post("/completions", json=body(prompts[0], **option))
            assert response.status_code == 400, (option, response.text)
        assert [generations(engine) for engine in stack.engines] == before
        [answer] = await ask(http, body([*prompts[0], VOCABULARY - 1]), False)
    assert [generations(engine) for engine in stack.engines] == [count + 1 for count in before]
    assert answer.token_ids


INCOMPLETE = {"do_remote_prefill": True, "do_remote_decode": False}


@pytest.mark.parametrize(
    "option",
    [
        {"kv_transfer_params": INCOMPLETE},
        {"kv_transfer_params": INCOMPLETE | {"remote_block_ids": [[1]]}},
        {"vllm_xargs": {"kv_transfer_params": json.dumps(INCOMPLETE)}},
    ],
    ids=["without blocks", "without an engine", "as an extra argument"],
)
async def test_transfer_params_of_a_client_reach_no_engine(
    option: dict[str, Any], stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    """They end a decode engine, or hang the request for ever. The request is valid all the same, as it is for
    vLLM; the params are left out, since only the orchestrator knows where the KV is."""
    async with client(stack.watched) as http:
        assert await ask(http, body(prompts[1], **option), False) == [colocated[1]]
    [prefill], [decode] = stack.prefill_box.requests, stack.decode_box.requests
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert decode["kv_transfer_params"]["remote_request_id"].startswith("generate-tokens-")
    for leg in (prefill, decode):
        assert "kv_transfer_params" not in (leg["sampling_params"].get("extra_args") or {})


async def test_each_leg_is_what_its_engine_needs(stack: Stack, prompts: list[list[int]]) -> None:
    """A streamed prefill gives no params, one that does not end by length keeps no KV, and a decode of other
    IDs than those that were prefilled gives wrong tokens."""
    given: list[dict[str, Any]] = []
    stack.prefill_box.change = partial(noted, given)
    options = {"n": 2, "stop": ["zzz"], "min_tokens": 3, "logprobs": 1, "seed": 3, "temperature": 1}
    async with client(stack.watched) as http:
        await ask(http, body(prompts[3], **options), True)
    prefills, decodes = stack.prefill_box.requests, stack.decode_box.requests
    assert len(prefills) == len(decodes) == 2
    assert len({leg["request_id"] for leg in prefills + decodes}) == 4
    assert all(leg["token_ids"] == prompts[3] for leg in prefills + decodes)
    for leg in prefills:
        assert leg["stream"] is False
        asked = leg["sampling_params"]
        assert (asked["n"], asked["max_tokens"], asked["min_tokens"], asked["ignore_eos"]) == (1, 1, 0, True)
        assert not asked.get("stop")
    for leg in decodes:
        assert leg["stream"] is True
        assert leg["kv_transfer_params"] in given
    assert decodes[0]["kv_transfer_params"] != decodes[1]["kv_transfer_params"]


# ---- who leaves ------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_during_render(stack: Stack, prompts: list[list[int]]) -> None:
    before = [generations(engine) for engine in stack.engines]
    stack.render.kill(signal.SIGSTOP)
    try:
        async with client(stack.apart) as http:
            request = asyncio.create_task(http.post("/completions", json=body(prompts[0])))
            await eventually(lambda: metric(stack.apart, "pd_in_flight") == 1, "not begun")
            await leave(request)
        await eventually(lambda: metric(stack.apart, "pd_in_flight") == 0, "the request goes on")
    finally:
        stack.render.kill(signal.SIGCONT)
    everything_becomes_free(stack)
    assert [generations(engine) for engine in stack.engines] == before


async def test_a_client_that_leaves_when_its_prefill_has_ended(
    stack: Stack, prompts: list[list[int]]
) -> None:
    """The abort comes too late, which the answer says: the KV is pulled by a decode of one token."""
    freed, before = metric(stack.watched, "pd_freed_kv_total"), stranded(stack.watched)
    stack.prefill_box.hold()
    async with client(stack.watched) as http:
        request = asyncio.create_task(http.post("/completions", json=body(prompts[25], max_tokens=1500)))
        await eventually(lambda: stack.prefill_box.waiting == 1, "no answer is held")
        await leave(request)
    await eventually(lambda: bool(stack.prefill_box.aborted), "no abort was sent")
    assert busy_blocks(stack) > 0
    stack.prefill_box.release()
    everything_becomes_free(stack)
    [freeing] = stack.decode_box.requests
    assert freeing["sampling_params"]["max_tokens"] == 1
    assert metric(stack.watched, "pd_freed_kv_total") == freed + 1
    assert not more_stranded(stack, before)


def busy_blocks(stack: Stack) -> float:
    """The share of the prefill engine's blocks that are held."""
    return metric(stack.pair.prefill, "vllm:kv_cache_usage_perc")


async def test_a_client_that_leaves_before_its_kv_is_pulled(stack: Stack, prompts: list[list[int]]) -> None:
    """The decode engine gets the request and stands still; aborted now, it would never pull."""
    before = stranded(stack.watched)
    generated = metric(stack.pair.decode, "vllm:generation_tokens_total")
    stack.prefill_box.hold()
    try:
        async with client(stack.watched) as http:
            sent = body(prompts[24], max_tokens=1500, ignore_eos=True)
            request = asyncio.create_task(http.post("/completions", json=sent))
            await eventually(lambda: stack.prefill_box.waiting == 1, "no answer is held")
            stack.pair.decode.kill(signal.SIGSTOP)
            stack.prefill_box.release()
            await eventually(lambda: len(stack.decode_box.requests) == 1, "decode was not asked")
            await leave(request)
        await asyncio.sleep(0.5)  # the orchestrator sees it leave
        assert metric(stack.watched, "pd_runs") == 1, "the decode is seen to its first token"
        assert not stack.decode_box.aborted
    finally:
        stack.pair.decode.kill(signal.SIGCONT)
    everything_becomes_free(stack)
    assert not more_stranded(stack, before)
    assert stack.decode_box.aborted == [f"generate-tokens-{stack.decode_box.requests[0]['request_id']}"]
    assert metric(stack.pair.decode, "vllm:generation_tokens_total") - generated < 750


@pytest.mark.parametrize("after_chunks", [1, 5])
async def test_a_client_that_leaves_while_streaming(
    after_chunks: int, stack: Stack, prompts: list[list[int]]
) -> None:
    generated = metric(stack.pair.decode, "vllm:generation_tokens_total")
    sent = body(prompts[25], ignore_eos=True, max_tokens=1500, stream=True)

    async def leaves() -> None:
        seen = 0
        async with client(stack.apart) as http, http.stream("POST", "/completions", json=sent) as response:
            async for line in response.aiter_lines():
                seen += line.startswith("data: ")
                if seen == after_chunks:
                    return

    await asyncio.gather(*(leaves() for _ in range(3)))
    everything_becomes_free(stack)
    assert metric(stack.pair.decode, "vllm:generation_tokens_total") - generated < 3 * 1500 / 2


async def test_a_client_that_leaves_during_prefill(stack: Stack, prompts: list[list[int]]) -> None:
    """An abort that meets the end of a prefill is answered as one that came in time, and the engine keeps the
    KV until its lease ends; so each aborted prefill counts, and only that engine knows more."""
    before = stranded(stack.watched)
    prompt = list(reversed(prompts[-1]))
    async with client(stack.watched) as http:
        request = asyncio.create_task(http.post("/completions", json=body(prompt)))
        await eventually(lambda: len(stack.prefill_box.requests) == 1, "prefill was not asked")
        await leave(request)
    everything_becomes_free(stack, within=LEASE_OVER_WITHIN)
    assert stack.prefill_box.aborted == [f"generate-tokens-{stack.prefill_box.requests[0]['request_id']}"]
    assert more_stranded(stack, before) in ({"prefill_aborted": 1}, {})
    assert not stack.decode_box.requests or not more_stranded(stack, before)


# ---- what is left to a lease: the prefill engine holds it from here on -------------------------------------


async def test_an_abort_that_meets_the_end_of_its_prefill_is_counted(
    stack: Stack, prompts: list[list[int]]
) -> None:
    """What vLLM's API server says of an abort, while its engine has just ended the prefill."""
    before = stranded(stack.watched)
    tokens, in_bytes = (
        metric(stack.watched, f"pd_stranded_kv_{unit}_total", reason="prefill_aborted")
        for unit in ("tokens", "bytes")
    )

    def aborted(_request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        [choice] = answer["choices"]
        cut = choice | {"finish_reason": "abort", "token_ids": []}
        return answer | {"choices": [cut], "kv_transfer_params": None}

    stack.prefill_box.change = aborted
    stack.prefill_box.hold()
    async with client(stack.watched) as http:
        request = asyncio.create_task(http.post("/completions", json=body(prompts[20])))
        await eventually(lambda: stack.prefill_box.waiting == 1, "no answer is held")
        await leave(request)
    await eventually(lambda: bool(stack.prefill_box.aborted), "no abort was sent")
    stack.prefill_box.release()
    becomes_free((stack.watched, IDLE))
    assert busy_blocks(stack) > 0
    assert more_stranded(stack, before) == {"prefill_aborted": 1}
    length = len(prompts[20])
    labels = {"reason": "prefill_aborted"}
    assert metric(stack.watched, "pd_stranded_kv_tokens_total", **labels) == tokens + length
    assert metric(stack.watched, "pd_stranded_kv_bytes_total", **labels) == (
        in_bytes + length * KV_BYTES_PER_TOKEN
    )


async def test_what_no_decode_may_have_reaches_none(stack: Stack, prompts: list[list[int]]) -> None:
    """Params without one of their parts end a decode engine or hang it; those of an earlier request, of
    another one, or of a longer prompt give another request's text, with status 200."""
    given: list[dict[str, Any]] = []
    """By the engine: of the first request, which is answered, and of the others."""

    def without(name: str) -> dict[str, Any]:
        return {field: value for field, value in given[-1].items() if field != name}

    cases: dict[str, Callable[[], Any]] = {
        **{f"lacks {name}": partial(without, name) for name in REQUIRED_REMOTE_FIELDS},
        "a part is null": lambda: given[-1] | {"remote_host": None},
        "no blocks": lambda: given[-1] | {"remote_block_ids": []},
        "asks for a decode": lambda: given[-1] | {"do_remote_prefill": False},
        "of a longer prompt": lambda: given[-1] | {"remote_num_tokens": 10_000},
        "used before": lambda: given[0],
        "of another request": lambda: given[1],
        "none": lambda: None,
    }
    before, asked = stranded(stack.watched), generations(stack.pair.decode)
    async with client(stack.watched) as http:
        stack.prefill_box.change = partial(noted, given)
        [answer] = await ask(http, body(prompts[2]), False)
        assert answer.token_ids
        for i, (case, made) in enumerate(cases.items()):
            stack.prefill_box.change = partial(noted, given, instead=made)
            response = await http.post("/completions", json=body(prompts[i % 4], stream=i % 2 == 1))
            assert response.status_code == 502, (case, response.text)
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert len(stack.decode_box.requests) == 1
    assert generations(stack.pair.decode) == asked + 1
    assert more_stranded(stack, before) == {"prefill_unusable": len(cases) - 1}


async def test_kv_whose_lease_ends_in_the_queue_is_prefilled_again(
    stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    """One decode stands; the next waits for its place with its KV held, longer than our own deadline for
    it."""
    before = stranded(stack.watched)
    given: list[dict[str, Any]] = []
    stack.prefill_box.change = partial(noted, given)
    stack.decode_box.hold()
    async with client(stack.watched) as http:
        first = asyncio.create_task(ask(http, body(prompts[7]), False))
        await eventually(lambda: stack.decode_box.waiting == 1, "no answer is held")
        second = asyncio.create_task(ask(http, body(prompts[8]), False))
        await eventually(lambda: len(stack.prefill_box.requests) == 3, "no fresh prefill")
        await eventually(lambda: len(given) == 3, "the fresh prefill gave nothing")
        stack.decode_box.release()
        assert await first == [colocated[7]]
        assert await second == [colocated[8]]
    assert [leg["kv_transfer_params"] for leg in stack.decode_box.requests] == [given[0], given[2]]
    assert more_stranded(stack, before) == {"lease_retry": 1}


# ---- engines that are not alike ----------------------------------------------------------------------------


@pytest.fixture
def brain_float(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A decode engine of the same model in bfloat16."""
    # A folder named after the test would make the paths of vLLM's sockets too long.
    logs = tmp_path_factory.mktemp("bfloat16")
    process = vllm.pair_engine(smollm2_dir, MODEL, "decode", "--dtype", "bfloat16", log_dir=logs)
    try:
        yield vllm.start(process)
    finally:
        process.stop()


async def test_a_decode_engine_of_another_dtype(
    stack: Stack, brain_float: ServerProcess, prompts: list[list[int]], tmp_path: Path
) -> None:
    """vLLM reports none, and nothing is declared here, so both are let in. Their handshake refuses the KV,
    and decode says so: no wrong answer comes of it."""
    members = ("--prefill", stack.pair.prefill.url, "--decode", brain_float.url)
    with orchestrator_server("--render", stack.render.url, *members, log_dir=tmp_path) as orchestrator:
        async with client(orchestrator) as http:
            for stream in (False, True):
                reply = await http.post("/completions", json=body(prompts[22], stream=stream), timeout=60)
                assert reply.status_code == 502, reply.text
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        becomes_free((orchestrator, IDLE), (brain_float, FREE))
    assert "compatibility hash mismatch" in brain_float.log(200_000)
    assert metric(brain_float, "vllm:nixl_bytes_transferred_sum") == 0


async def test_requests_in_the_queue_of_a_full_decode_engine(
    stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    """Longer than the engines' lease, which the decode engine renews while it cannot pull. One of those that
    wait is left by its client. All that was left to a lease before is free then."""
    long = [body(prompts[i], ignore_eos=True, max_tokens=1500, stream=True) for i in range(8)]
    before = stranded(stack.apart)
    async with client(stack.apart) as http:
        running = [asyncio.create_task(http.post("/completions", json=sent)) for sent in long]
        await eventually(
            lambda: metric(stack.pair.decode, "vllm:num_requests_running") == len(long),
            "the engine is not full",
        )
        waiting = asyncio.create_task(ask(http, body(prompts[20]), False))
        leaving = asyncio.create_task(http.post("/completions", json=body(prompts[21])))
        await eventually(
            lambda: metric(stack.pair.decode, "vllm:num_requests_waiting") == 2,
            "they do not wait on the engine",
        )
        await leave(leaving)
        await asyncio.sleep(ENGINE_LEASE + 3)
        assert not waiting.done()
        for request in running:
            await leave(request)
        assert await waiting == [colocated[20]]
    everything_becomes_free(stack, within=FREE_WITHIN)
    assert stranded(stack.apart) == before
