"""A real prefill and a real decode engine over NIXL, behind our render tier and orchestrator.

Greedy answers over P/D are those of three hops on the same decode engine; what is asked of sampling and
streaming arrives; and nothing is left on either engine, whatever became of the request. The last test kills
the prefill engine.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tokenizers import Tokenizer

from tests.support import vllm
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server
from tests.vllm.test_engine_equals_vllm import QUESTIONS, TEXTS

MODEL = "smollm2"
TOKENS = 12
CONCURRENCY = 4
VOCABULARY = 49_152

# Around the size of a cache block (16, and 128 on the CPU) too.
LENGTHS = (
    *(20, 24, 28, 31, 32, 33, 40, 47, 48, 49, 56, 63, 64, 65, 72, 80, 96, 112),
    *(127, 128, 129, 144, 160, 192, 255, 256, 257, 320, 420, 640, 1024, 1500),
)

SETTLED = (
    *("pd_in_flight", "pd_runs", "pd_leases", "pd_places", "pd_exchanges", "pd_session_streams", "pd_tasks"),
    "pd_stranded_kv_total",
)
"""Of the orchestrator: zero when it is idle and nothing was left to a lease."""
FREE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
"""Of an engine: zero when it holds nothing."""
FREE_WITHIN = 20.0
"""Seconds: well below the engines' lease of 30, so that KV which only the lease would free is found."""
LEASE_OVER_WITHIN = 60.0
"""Seconds: where an engine may hold KV of which it tells nobody."""


@dataclass(frozen=True)
class Stack:
    pair: vllm.Pair
    apart: ServerProcess
    """The orchestrator of four hops."""
    together: ServerProcess
    """That of three hops: the decode engine prefills."""


@pytest.fixture(scope="module")
def stack(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    logs = tmp_path_factory.mktemp("pair")
    with (
        vllm.nixl_pair(smollm2_dir, MODEL, logs) as pair,
        render_tier_server(smollm2_dir, "--served-model-name", MODEL, log_dir=logs) as render,
        orchestrator_server(
            *("--render", render.url, "--prefill", pair.prefill.url, "--decode", pair.decode.url),
            log_dir=logs,
        ) as apart,
        orchestrator_server(
            *("--render", render.url, "--decode", pair.decode.url), log_dir=logs, name="together"
        ) as together,
    ):
        yield Stack(pair, apart, together)


def samples(server: ServerProcess) -> list[Sample]:
    page = httpx.get(f"{server.url}/metrics", timeout=30, trust_env=False).text
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(
        sample.value
        for sample in samples(server)
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def busy(server: ServerProcess, names: tuple[str, ...]) -> dict[str, float]:
    """Which of these are not zero; all must exist."""
    found = samples(server)
    assert {name for name in names if name in FREE} <= {sample.name for sample in found}
    return {
        f"{server.name} {sample.name} {sample.labels.get('reason', '')}": sample.value
        for sample in found
        if sample.name in names and sample.value
    }


def becomes_free(*expected: tuple[ServerProcess, tuple[str, ...]], within: float = FREE_WITHIN) -> None:
    end = time.monotonic() + within
    while left := {name: value for server, names in expected for name, value in busy(server, names).items()}:
        assert time.monotonic() < end, left
        time.sleep(0.1)


@pytest.fixture
def settled(stack: Stack) -> Iterator[None]:
    """After the test nothing is left in the orchestrators and on the engines."""
    yield
    becomes_free(
        (stack.apart, SETTLED),
        (stack.together, SETTLED),
        (stack.pair.prefill, FREE),
        (stack.pair.decode, FREE),
    )


# ---- asking ------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """One choice of a completion."""

    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None = None


def client(server: ServerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{server.url}/v1", timeout=240, trust_env=False)


def body(prompt: list[int] | str, **options: Any) -> dict[str, Any]:
    fixed = {
        "model": MODEL,
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": TOKENS,
        "return_token_ids": True,
    }
    return fixed | options


async def events(http: httpx.AsyncClient, sent: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end with [DONE]."""
    async with http.stream("POST", "/completions", json=sent | {"stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    chunks: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert not [chunk for chunk in chunks if "error" in chunk]
    return chunks


async def whole(http: httpx.AsyncClient, sent: dict[str, Any]) -> dict[str, Any]:
    response = await http.post("/completions", json=sent)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


async def ask(http: httpx.AsyncClient, sent: dict[str, Any], stream: bool) -> list[Answer]:
    """The choices in order."""
    if not stream:
        choices = (await whole(http, sent))["choices"]
        return [Answer(c["text"], c["token_ids"], c["finish_reason"], c.get("stop_reason")) for c in choices]
    answers = [Answer("", [], None) for _ in range(sent.get("n", 1))]
    for chunk in await events(http, sent):
        for choice in chunk["choices"]:
            answer = answers[choice["index"]]
            answer.text += choice["text"]
            answer.token_ids += choice.get("token_ids") or []
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            answer.stop_reason = choice.get("stop_reason") or answer.stop_reason
    return answers


async def ask_all(
    server: ServerProcess, prompts: list[list[int]], stream: bool, **options: Any
) -> list[Answer]:
    """One answer for each prompt, `CONCURRENCY` at a time."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(prompt: list[int]) -> Answer:
        async with gate:
            [answer] = await ask(http, body(prompt, **options), stream)
            return answer

    async with client(server) as http:
        return await asyncio.gather(*map(one, prompts))


@pytest.fixture(scope="module")
def prompts(smollm2_dir: Path) -> list[list[int]]:
    """One for each of `LENGTHS`; no two begin alike, so that no prefix cache answers for the engines."""
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    draw = random.Random(11)
    made = []
    for i, length in enumerate(LENGTHS):
        ids = tokenizer.encode(f"{i}. ").ids
        while len(ids) < length:
            ids += tokenizer.encode(" " + draw.choice(QUESTIONS + TEXTS)).ids
        made.append(ids[:length])
    return made


@pytest.fixture(scope="module")
def colocated(stack: Stack, prompts: list[list[int]]) -> list[Answer]:
    """What the decode engine says to each prompt when it prefills itself."""
    return asyncio.run(ask_all(stack.together, prompts, stream=False))


# ---- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_greedy_answers_over_pd_are_the_colocated_ones_and_kv_moved(
    stream: bool, stack: Stack, prompts: list[list[int]], colocated: list[Answer], settled: None
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
    assert moved >= sum(LENGTHS) * 30 * 2 * 3 * 64 * 4, "layers, keys and values, heads, their size, float32"
    assert failed == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_chat(stream: bool, stack: Stack, settled: None) -> None:
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
    stream: bool, stack: Stack, prompts: list[list[int]], colocated: list[Answer], settled: None
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


async def test_a_seed_gives_what_the_colocated_engine_draws(
    stack: Stack, prompts: list[list[int]], settled: None
) -> None:
    few = prompts[5:9]
    sampling = {"temperature": 0.9, "top_p": 0.95, "seed": 17}
    assert await ask_all(stack.apart, few, False, **sampling) == await ask_all(
        stack.together, few, False, **sampling
    )


async def test_logprobs(stack: Stack, prompts: list[list[int]], settled: None) -> None:
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
    stream: bool, stack: Stack, prompts: list[list[int]], settled: None
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
async def test_stop_tokens_and_min_tokens(
    stream: bool, stack: Stack, prompts: list[list[int]], settled: None
) -> None:
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


async def test_continuous_usage(stack: Stack, prompts: list[list[int]], settled: None) -> None:
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


# ---- what must not reach an engine, and what must not stay on one ------------------------------------------


async def test_ids_outside_the_vocabulary_reach_no_engine(
    stack: Stack, prompts: list[list[int]], settled: None
) -> None:
    """Either engine would end with the first one."""
    engines = (stack.pair.prefill, stack.pair.decode)
    before = [metric(engine, "vllm:prompt_tokens_total") for engine in engines]
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
        assert [metric(engine, "vllm:prompt_tokens_total") for engine in engines] == before
        [answer] = await ask(http, body([*prompts[0], VOCABULARY - 1]), False)
    assert answer.token_ids


async def test_a_client_cannot_send_transfer_params_of_its_own(
    stack: Stack, prompts: list[list[int]], colocated: list[Answer], settled: None
) -> None:
    """Incomplete ones end a decode engine, or hang the request for ever."""
    incomplete = {"do_remote_prefill": True, "do_remote_decode": False}
    async with client(stack.apart) as http:
        for sent in (
            body(prompts[1], kv_transfer_params=incomplete),
            body(prompts[1], kv_transfer_params=incomplete | {"remote_block_ids": [[1]]}),
            body(prompts[1], vllm_xargs={"kv_transfer_params": json.dumps(incomplete)}),
        ):
            response = await http.post("/completions", json=sent)
            if response.status_code == 200:
                assert response.json()["choices"][0]["token_ids"] == colocated[1].token_ids
            else:
                assert response.status_code == 400, response.text
        assert await ask(http, body(prompts[1]), False) == [colocated[1]]


@pytest.mark.parametrize("after_chunks", [0, 1, 5])
async def test_a_client_that_leaves_while_streaming(
    after_chunks: int, stack: Stack, prompts: list[list[int]], settled: None
) -> None:
    """With 0 it leaves before the first token: prefill may run, KV be held, or its transfer be under way.

    An abort that meets the end of a prefill is answered without transfer params, although the engine keeps
    the KV; then its lease has to end.
    """
    generated = metric(stack.pair.decode, "vllm:generation_tokens_total")
    sent = body(prompts[25], ignore_eos=True, max_tokens=1500, stream=True)

    async def leaves(delay: float) -> None:
        seen = 0
        async with client(stack.apart) as http:
            if after_chunks == 0:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(delay):
                        await http.post("/completions", json=sent)
                return
            async with http.stream("POST", "/completions", json=sent) as response:
                async for line in response.aiter_lines():
                    seen += line.startswith("data: ")
                    if seen == after_chunks:
                        return

    await asyncio.gather(*(leaves(delay) for delay in (0.05, 0.3, 0.8)))
    within = LEASE_OVER_WITHIN if after_chunks == 0 else FREE_WITHIN
    becomes_free((stack.pair.decode, FREE), (stack.pair.prefill, FREE), within=within)
    assert metric(stack.pair.decode, "vllm:generation_tokens_total") - generated < 3 * 1500 / 2


async def test_a_prefill_engine_that_dies(
    stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    """Each request under way has the right answer or an honest error, later ones are refused, and the decode
    engine is well."""
    few = range(22, 30)
    async with client(stack.apart) as http:
        asked = [asyncio.create_task(http.post("/completions", json=body(prompts[i]))) for i in few]
        # One is complete then; the others are anywhere before that.
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=120)
        stack.pair.prefill.kill()
        replies = await asyncio.wait_for(asyncio.gather(*asked), 120)
        late = await asyncio.wait_for(http.post("/completions", json=body(prompts[0])), 60)
    for i, reply in zip(few, replies, strict=True):
        if reply.status_code == 200:
            assert reply.json()["choices"][0]["token_ids"] == colocated[i].token_ids
        else:
            assert reply.status_code in (500, 502, 503), reply.text
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert 200 in {reply.status_code for reply in replies}
    assert late.status_code == 503, late.text
    async with client(stack.together) as http:
        assert await ask(http, body(prompts[0]), False) == [colocated[0]]
    idle = tuple(name for name in SETTLED if name != "pd_stranded_kv_total")
    becomes_free((stack.apart, idle), (stack.pair.decode, FREE))
