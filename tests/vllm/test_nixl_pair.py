"""A real prefill and a real decode engine over NIXL, behind our render tier and orchestrator.

Greedy answers over P/D are those of three hops on the same decode engine; what is asked of sampling and
streaming arrives; and nothing is left on either engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.completions import MODEL, TOKENS, Answer, ask, ask_all, body, client, events, whole
from tests.support.pd_stack import (
    FREE,
    KV_BYTES_PER_TOKEN,
    Stack,
    becomes_free,
    everything_becomes_free,
    metric,
    stranded,
)
from tests.support.prompts import LENGTHS


@pytest.fixture(autouse=True)
def settled(stack: Stack) -> Iterator[None]:
    """After each test nothing is left on the engines or in the orchestrators, nor was left to a lease."""
    before = stranded(stack.apart)
    yield
    everything_becomes_free(stack)
    assert stranded(stack.apart) == before


# ---- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_greedy_answers_over_pd_are_the_colocated_ones_and_kv_moved(
    stream: bool, stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    assert len(prompts) >= 30
    names = {
        "vllm:prompt_tokens_by_source_total": {"source": "external_kv_transfer"},
        "vllm:nixl_bytes_transferred_sum": {},
        "vllm:nixl_num_failed_transfers_total": {},
    }
    before = [metric(stack.pair.decode, name, **labels) for name, labels in names.items()]
    answers = await ask_all(stack.apart, prompts, stream)
    different = {
        LENGTHS[i]: (mine, expected)
        for i, (mine, expected) in enumerate(zip(answers, colocated, strict=True))
        if mine != expected
    }
    assert not different
    assert all(len(answer.token_ids) == TOKENS for answer in answers if answer.finish_reason == "length")
    after = [metric(stack.pair.decode, name, **labels) for name, labels in names.items()]
    tokens, moved, failed = (new - old for new, old in zip(after, before, strict=True))
    # The decode engine has no prefix cache: all but the last token of each prompt came from the other side.
    assert sum(LENGTHS) - len(LENGTHS) <= tokens <= sum(LENGTHS)
    assert moved >= sum(LENGTHS) * KV_BYTES_PER_TOKEN
    assert failed == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_chat(stream: bool, stack: Stack) -> None:
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Why do ships float?"}],
        "temperature": 0,
        "max_completion_tokens": 24,
        "return_token_ids": True,
    }
    found = []
    for server in (stack.together, stack.apart):
        async with client(server) as http:
            if not stream:
                reply = (await http.post("/chat/completions", json=chat)).json()
                found.append((reply["choices"][0]["message"]["content"], reply["choices"][0]["token_ids"]))
                continue
            text = ""
            ids: list[int] = []
            async with http.stream("POST", "/chat/completions", json=chat | {"stream": True}) as response:
                async for line in response.aiter_lines():
                    if line and not line.endswith("[DONE]"):
                        for choice in json.loads(line.removeprefix("data: "))["choices"]:
                            text += choice["delta"].get("content") or ""
                            ids += choice.get("token_ids") or []
            found.append((text, ids))
    assert found[0] == found[1]
    assert len(found[0][1]) == 24


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_two_choices_each_with_kv_of_their_own(
    stream: bool, stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    prompt = prompts[20]
    before = metric(stack.pair.decode, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    async with client(stack.apart) as http:
        likeliest = await ask(http, body(prompt, n=2, temperature=1, top_k=1), stream)
        drawn = await ask(http, body(prompt, n=2, temperature=1.5, seed=5), stream)
        again = await ask(http, body(prompt, n=2, temperature=1.5, seed=5), stream)
    after = metric(stack.pair.decode, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    assert likeliest[0] == likeliest[1] == colocated[20]
    assert drawn[0] != drawn[1]
    assert drawn == again
    assert after - before >= 6 * (len(prompt) - 1)


async def test_a_seed_gives_what_the_colocated_engine_draws(stack: Stack, prompts: list[list[int]]) -> None:
    few = prompts[5:9]
    sampling = {"temperature": 0.9, "top_p": 0.95, "seed": 17}
    assert await ask_all(stack.apart, few, False, **sampling) == await ask_all(
        stack.together, few, False, **sampling
    )


async def test_logprobs(stack: Stack, prompts: list[list[int]]) -> None:
    sent = body(prompts[10], logprobs=3)
    replies = []
    for server in (stack.together, stack.apart):
        async with client(server) as http:
            replies.append((await whole(http, sent))["choices"][0]["logprobs"])
    async with client(stack.apart) as http:
        streamed = [c["logprobs"] for chunk in await events(http, sent) for c in chunk["choices"]]
    expected, mine = replies
    for field in ("tokens", "text_offset"):
        assert mine[field] == expected[field]
        assert [value for part in streamed if part for value in part[field]] == expected[field]
    assert len(mine["tokens"]) == TOKENS
    assert mine["token_logprobs"] == pytest.approx(expected["token_logprobs"], abs=1e-4)
    for one, other in zip(mine["top_logprobs"], expected["top_logprobs"], strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert all(mine["top_logprobs"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_stop_string_cuts_the_answer_and_ends_the_decode(
    stream: bool, stack: Stack, prompts: list[list[int]]
) -> None:
    """The engine has no tokenizer and would go on for 1,500 tokens."""
    prompt = prompts[6]
    async with client(stack.apart) as http:
        [free] = await ask(http, body(prompt, ignore_eos=True, max_tokens=24), False)
        stop = free.text[len(free.text) // 2 :][:4]
        generated = metric(stack.pair.decode, "vllm:generation_tokens_total")
        [cut] = await ask(http, body(prompt, ignore_eos=True, max_tokens=1500, stop=[stop]), stream)
    assert cut.text == free.text[: free.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    becomes_free((stack.pair.decode, FREE), (stack.pair.prefill, FREE))
    assert metric(stack.pair.decode, "vllm:generation_tokens_total") - generated < 750


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_stop_tokens_and_min_tokens(stream: bool, stack: Stack, prompts: list[list[int]]) -> None:
    prompt = prompts[6]
    async with client(stack.apart) as http:
        [free] = await ask(http, body(prompt, ignore_eos=True), stream)
        stop = free.token_ids[2]
        first = free.token_ids.index(stop)
        [cut] = await ask(http, body(prompt, stop_token_ids=[stop]), stream)
        [late] = await ask(http, body(prompt, stop_token_ids=[stop], min_tokens=9), stream)
    assert cut.token_ids == free.token_ids[: first + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    # Until then the token is masked, so the answer is another one.
    assert late.token_ids[:first] == free.token_ids[:first]
    assert stop not in late.token_ids[:9]
    assert len(late.token_ids) >= 9


async def test_continuous_usage(stack: Stack, prompts: list[list[int]]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with client(stack.apart) as http:
        chunks = await events(http, body(prompts[4], ignore_eos=True, stream_options=options))
    usages = [chunk["usage"] for chunk in chunks]
    counts = [usage["completion_tokens"] for usage in usages]
    assert {usage["prompt_tokens"] for usage in usages} == {len(prompts[4])}
    assert counts == sorted(counts)
    assert counts[-1] == TOKENS
    assert len(set(counts)) > 2
    seen = 0
    for chunk in chunks:
        seen += sum(len(choice.get("token_ids") or []) for choice in chunk["choices"])
        assert chunk["usage"]["completion_tokens"] == seen


# ---- what is known of the engines --------------------------------------------------------------------------


async def test_what_engines_report_is_read_and_compared(stack: Stack, prompts: list[list[int]]) -> None:
    await ask_all(stack.apart, prompts[:1], stream=False)
    async with client(stack.apart) as http:
        status = (await http.get(f"{stack.apart.url}/status")).json()
    [prefill], [decode] = status["pools"]["prefill"], status["pools"]["decode"]
    for engine in (prefill, decode):
        assert engine["state"] == "in"
        assert not any(difference["keeps_out"] for difference in engine["differences"])
        facts = {name: fact["value"] for name, fact in engine["capabilities"].items() if fact["verified"]}
        assert facts["max_model_len"] == 2048
        assert facts["block_size"] == 128
        assert facts["version"].startswith("0.32")
        assert facts["tokens_only"] is True
        assert facts["structured_outputs"] is False
    assert prefill["capabilities"]["tensor_parallel"] == {"value": 1, "verified": True}, "from its answer"
    assert prefill["capabilities"]["model"] == decode["capabilities"]["model"]
    assert status["engine_limits"]["max_model_len"] == 2048
