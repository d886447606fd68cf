"""Complete answers through the official client: whole and streaming, chat and completions, P/D and
colocated."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, COMPLETIONS, GENERATE

MESSAGES: Any = [{"role": "user", "content": "one two three"}]
PROMPT_IDS = [3, 3, 5]


def text_of(first: int, count: int) -> str:
    return "".join(f"t{first + i} " for i in range(count))


async def streamed(stack: Stack, **options: Any) -> list[Any]:
    stream = await stack.client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, max_tokens=5, **options
    )
    return [chunk async for chunk in stream]


@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
async def test_whole_chat(launch: Launch, prefill: int) -> None:
    async with launch(prefill=prefill) as stack:
        answer = await stack.client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=5)
        assert answer.choices[0].message.content == text_of(100, 5)
        assert answer.choices[0].finish_reason == "length"
        assert answer.id.startswith("chatcmpl-")
        assert answer.usage.prompt_tokens == 3
        assert answer.usage.completion_tokens == 5
        assert answer.usage.total_tokens == 8
        # From prefill in P/D mode, where decode would count the KV it pulled; from decode otherwise.
        assert answer.usage.prompt_tokens_details.cached_tokens == (3 if prefill else 5)
        await stack.settled()
        assert not any(tier.held for tier in stack.prefill)


@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
async def test_streamed_chat(launch: Launch, prefill: int) -> None:
    async with launch(prefill=prefill) as stack:
        chunks = await streamed(stack, stream_options={"include_usage": True})
        assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == text_of(100, 5)
        assert len({(c.id, c.created) for c in chunks}) == 1
        assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1].usage.completion_tokens == 5
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == (3 if prefill else 5)
        assert chunks[-2].choices[0].finish_reason == "length"
        await stack.settled()


async def test_a_stream_without_include_usage_has_no_usage_chunk(launch: Launch) -> None:
    async with launch() as stack:
        chunks = await streamed(stack)
        assert all(chunk.choices for chunk in chunks)


async def test_continuous_usage_counts_up(launch: Launch) -> None:
    async with launch(pace=0.01) as stack:
        chunks = await streamed(stack, stream_options={"include_usage": True, "continuous_usage_stats": True})
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 5
        assert all(chunk.usage.prompt_tokens == 3 for chunk in chunks)


async def test_both_legs_carry_the_same_ids_and_fresh_request_ids(launch: Launch) -> None:
    async with launch() as stack:
        await stack.http.post(
            "/v1/chat/completions",
            json={"messages": MESSAGES, "max_tokens": 5, "cache_salt": "s"},
            headers={"X-Request-Id": "mine", "traceparent": "00-1", "x-session-id": "abc"},
        )
        [prefill] = stack.prefill[0].requests[GENERATE]
        [decode] = stack.decode[0].requests[GENERATE]
        assert prefill["token_ids"] == decode["token_ids"] == PROMPT_IDS
        assert prefill["unknown_field"] == decode["unknown_field"] == {"kept": [1, 2.5, "x"]}
        assert prefill["cache_salt"] == decode["cache_salt"] == "s"
        assert len({prefill["request_id"], decode["request_id"], "mine", "client-chosen"}) == 4
        for tier in (stack.prefill[0], stack.decode[0]):
            [headers] = tier.headers[GENERATE]
            assert headers["traceparent"] == "00-1"
            assert headers["x-session-id"] == "abc"
            assert "x-request-id" not in headers


async def test_the_client_request_id_is_echoed(launch: Launch) -> None:
    async with launch() as stack:
        body = {"messages": MESSAGES, "max_tokens": 2}
        answer = await stack.http.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert "mine" not in answer.json()["id"]
        unsafe = await stack.http.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "a b"})
        assert unsafe.headers["x-request-id"] != "a b"


@pytest.mark.parametrize("stream", [False, True])
async def test_n_choices_are_independent_pairs_merged_by_index(launch: Launch, stream: bool) -> None:
    async with launch() as stack:
        options: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": 3, "n": 3, "seed": 7}
        texts = dict.fromkeys(range(3), "")
        if stream:
            chunks = await stack.client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}
            )
            async for chunk in chunks:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content
            usage = chunk.usage
        else:
            answer = await stack.client.chat.completions.create(**options)
            for choice in answer.choices:
                texts[choice.index] = choice.message.content
            usage = answer.usage
        # The engine's text depends on the seed: equal seeds would give three equal choices.
        assert texts == {i: text_of(100 + 1000 * (7 + i), 3) for i in range(3)}
        assert (usage.prompt_tokens, usage.completion_tokens) == (3, 9)
        assert len(stack.prefill[0].requests[GENERATE]) == 3
        assert all(r["sampling_params"]["n"] == 1 for r in stack.decode[0].requests[GENERATE])
        await stack.settled()
        assert not stack.prefill[0].held


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_with_several_prompts(launch: Launch, stream: bool) -> None:
    async with launch() as stack:
        options: dict[str, Any] = {"model": "m", "prompt": ["a", "b c"], "max_tokens": 2, "n": 2}
        if stream:
            seen: dict[int, str] = dict.fromkeys(range(4), "")
            async for chunk in await stack.client.completions.create(**options, stream=True):
                for choice in chunk.choices:
                    seen[choice.index] += choice.text
        else:
            answer = await stack.client.completions.create(**options)
            assert answer.id.startswith("cmpl-")
            assert answer.usage.prompt_tokens == 3
            assert answer.usage.completion_tokens == 8
            seen = {choice.index: choice.text for choice in answer.choices}
        assert seen == dict.fromkeys(range(4), text_of(100, 2))
        prompts = sorted(r["token_ids"] for r in stack.decode[0].requests[GENERATE])
        assert prompts == [[1], [1], [1, 1], [1, 1]]
        await stack.settled()


async def test_max_tokens_left_out_by_render_is_sixteen(launch: Launch) -> None:
    async with launch() as stack:
        answer = await stack.client.completions.create(model="m", prompt="a")
        assert answer.usage.completion_tokens == 16
        assert stack.decode[0].requests[GENERATE][0]["sampling_params"]["max_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_and_aborts_decode(launch: Launch, stream: bool) -> None:
    async with launch(pace=0.005) as stack:
        options: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": 5000, "stop": ["t103"]}
        if stream:
            chunks = await stack.client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}
            )
            received = [chunk async for chunk in chunks]
            content = "".join(c.choices[0].delta.content for c in received if c.choices)
            finish = received[-2].choices[0].finish_reason
            usage = received[-1].usage
        else:
            answer = await stack.client.chat.completions.create(**options)
            content, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
            usage = answer.usage
        assert content == text_of(100, 3)
        assert finish == "stop"
        assert usage.completion_tokens == 4
        await stack.settled()
        [leg] = stack.decode[0].requests[GENERATE]
        assert stack.decode[0].aborted == [f"generate-tokens-{leg['request_id']}"]
        assert stack.decode[0].sent_tokens < 5000
        assert "stop" not in leg["sampling_params"]


async def test_logprobs_reach_derender_whole_and_streaming(launch: Launch) -> None:
    async with launch() as stack:
        options: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4, "logprobs": 1}
        whole = (await stack.http.post("/v1/chat/completions", json=options)).json()
        assert [e["token_id"] for e in whole["choices"][0]["logprobs"]["content"]] == [100, 101, 102, 103]
        chunks = await streamed(stack, extra_body={"logprobs": 1, "max_tokens": 4})
        entries = [e for c in chunks for e in c.choices[0].logprobs.content]
        assert len(entries) == 4
        assert "logprobs" not in stack.prefill[0].requests[GENERATE][0]["sampling_params"]


async def test_return_token_ids(launch: Launch) -> None:
    async with launch() as stack:
        whole = await stack.http.post(
            "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 3, "return_token_ids": True}
        )
        assert whole.json()["prompt_token_ids"] == PROMPT_IDS
        chunks = await streamed(stack, extra_body={"return_token_ids": True})
        assert [
            c.model_extra.get("prompt_token_ids") for c in chunks if c.model_extra.get("prompt_token_ids")
        ] == [PROMPT_IDS]


@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
async def test_prompt_logprobs_come_from_the_leg_that_prefills(launch: Launch, prefill: int) -> None:
    async with launch(prefill=prefill) as stack:
        answer = await stack.http.post(
            "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 3, "prompt_logprobs": 1}
        )
        assert answer.json()["prompt_logprobs"] == [None, {"7": {"logprob": -1.5, "rank": 1}}]
        [decode] = stack.decode[0].requests[GENERATE]
        assert ("prompt_logprobs" in decode["sampling_params"]) is not bool(prefill)
        await stack.settled()


async def test_one_token_is_decoded_without_a_prefill_leg(launch: Launch) -> None:
    async with launch() as stack:
        answer = await stack.client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=1)
        assert answer.usage.completion_tokens == 1
        assert not stack.prefill[0].requests[GENERATE]
    async with launch(settings={"policy": {"skip_prefill_for_one_token": False}}) as stack:
        answer = await stack.client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=1)
        assert answer.usage.completion_tokens == 1
        assert len(stack.prefill[0].requests[GENERATE]) == 1
        await stack.settled()


async def test_short_prompts_can_skip_the_prefill_leg(launch: Launch) -> None:
    async with launch(settings={"policy": {"skip_prefill_below_tokens": 3}}) as stack:
        await stack.client.completions.create(model="m", prompt=["a b", "a b c"], max_tokens=2)
        assert [r["token_ids"] for r in stack.prefill[0].requests[GENERATE]] == [[1, 1, 1]]


async def test_context_is_sent_once_and_again_when_a_replica_does_not_know_it(launch: Launch) -> None:
    async with launch(pace=0.01) as stack:
        stack.render.forget_contexts = True
        chunks = await streamed(stack)
        assert "".join(c.choices[0].delta.content for c in chunks) == text_of(100, 5)
        calls = stack.render.requests[f"{CHAT}/derender"]
        full = ["chat_request" in call for call in calls]
        assert full[0]
        assert not full[1]
        assert full[2], "the refused call is repeated in full"
        assert not any(full[3:])


async def test_a_slow_derender_makes_larger_calls_not_a_longer_queue(launch: Launch) -> None:
    async with launch(settings={"limits": {"pending_tokens": 8}}) as stack:
        stack.render.hold.clear()
        # Render itself must pass before derender is held.
        stack.render.hold.set()
        stream = await stack.client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, max_tokens=2000
        )
        stack.render.waiting.clear()
        stack.render.hold.clear()
        iterator = aiter(stream)
        text = (await anext(iterator)).choices[0].delta.content
        await stack.render.waiting.wait()
        stack.render.hold.set()
        async for chunk in iterator:
            text += chunk.choices[0].delta.content
        assert text == text_of(100, 2000)
        sizes = [
            len(call["generate_chunk"]["choices"][0]["token_ids"])
            for call in stack.render.requests[f"{CHAT}/derender"]
        ]
        assert max(sizes) <= 9
        assert sum(sizes) == 2000
        await stack.settled()


async def test_timing_for_a_client_that_asks(launch: Launch) -> None:
    async with launch() as stack:
        header = {"X-PD-Timing": "1"}
        answer = await stack.client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=3, extra_headers=header
        )
        timing = answer.model_extra["pd_timing"]
        chunks = await streamed(stack, extra_headers=header)
        last = chunks[-1]
        assert last.choices == []
        for report in (timing, last.model_extra["pd_timing"]):
            for span in ("render", "prefill", "decode_first_token", "first_derender", "ttft", "total"):
                assert report[f"{span}_ms"] >= 0
            assert report["prefill_member"] == stack.prefill[0].url
            assert report["decode_member"] == stack.decode[0].url
        assert timing["itl_ms"]["count"] == 2
        assert timing["completion_tokens"] == 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_derendering_of_a_whole_answer_is_told_without_its_decoding(launch: Launch, path: str) -> None:
    async with launch(pace=0.02) as stack:
        body = {"model": "m", "messages": MESSAGES, "max_tokens": 8}
        answer = await stack.http.post(path, json=body, headers={"X-PD-Timing": "1"})
        timing = answer.json()["pd_timing"]
        gaps = timing["itl_ms"]
        assert gaps["count"] == 7
        assert timing["first_derender_ms"] + gaps["count"] * gaps["mean"] < timing["ttft_ms"]


async def test_models_ready_health_version_metrics(launch: Launch) -> None:
    async with launch() as stack:
        assert [model.id async for model in stack.client.models.list()] == ["scripted"]
        assert (await stack.http.get("/health")).status_code == 200
        assert (await stack.http.get("/version")).json()["version"]
        ready = await stack.http.get("/ready")
        assert ready.status_code == 200
        stack.prefill[0].healthy = False
        await stack.services.check_health()
        ready = await stack.http.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["missing"] == ["prefill"]
        stack.prefill[0].healthy = True
        await stack.services.check_health()
        await streamed(stack)
        await stack.settled()
        metrics = (await stack.http.get("/metrics")).text
        assert "pd_in_flight 0.0" in metrics
        assert 'pd_requests_total{endpoint="chat",outcome="ok"} 1.0' in metrics
        assert 'pd_hop_seconds_count{hop="prefill"} 1.0' in metrics


async def test_the_sync_client_works_too(launch: Launch) -> None:
    import asyncio

    async with launch() as stack:

        def ask() -> str:
            with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
                stream = client.chat.completions.create(
                    model="m", messages=MESSAGES, max_tokens=4, stream=True
                )
                return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

        assert await asyncio.to_thread(ask) == text_of(100, 4)
        assert stack.render.requests[f"{COMPLETIONS}/render"] == []
