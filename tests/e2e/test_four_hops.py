"""The official `openai` client against all four hops as real processes: the client surface, errors, and
deaths.

SmolLM2 computes what the model can write; a played script gives the reasoning and tool calls that it cannot.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from orchestrator.demo.script import WEATHER_TOOL
from tests.support.processes import ServerProcess, orchestrator_server
from tests.support.stacks import LEASES, RUNNING, Scripted, becomes_idle, metric, parts_of_the_script

CHAT: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
}


@pytest.fixture(scope="module")
def colocated(
    render_tier: ServerProcess, colocated_engine: ServerProcess, server_logs: Path
) -> Iterator[openai.OpenAI]:
    """Three hops: no prefill pool."""
    options = ("--render", render_tier.url, "--decode", colocated_engine.url)
    with (
        orchestrator_server(*options, log_dir=server_logs, name="orchestrator-colocated") as process,
        openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
        becomes_idle(process)


# ---- answers -----------------------------------------------------------------------------------------------


def test_whole_equals_streamed_equals_colocated(client: openai.OpenAI, colocated: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, max_tokens=24)
    chunks = list(
        client.chat.completions.create(
            **CHAT, max_tokens=24, stream=True, stream_options={"include_usage": True}
        )
    )
    three = colocated.chat.completions.create(**CHAT, max_tokens=24)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content == three.choices[0].message.content
    assert "Paris" in text
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(whole.usage, field) == getattr(chunks[-1].usage, field) == getattr(three.usage, field)
    assert len({chunk.id for chunk in chunks}) == len({chunk.created for chunk in chunks}) == 1


def turns(count: int) -> list[dict[str, str]]:
    """A conversation of ``count`` questions with answers between them."""
    chat = []
    for i in range(count):
        chat.append({"role": "user", "content": f"Name a number larger than {i} and say why you chose it."})
        chat.append({"role": "assistant", "content": f"{i + 1}, because it is the next one."})
    return [*chat, {"role": "user", "content": "And now?"}]


@pytest.mark.parametrize("count", [0, 3, 60], ids=["short", "turns", "over 2000 tokens"])
def test_greedy_tokens_over_pd_are_those_of_the_colocated_engine(
    client: openai.OpenAI, colocated: openai.OpenAI, count: int
) -> None:
    options = CHAT | {"messages": turns(count), "max_tokens": 12, "extra_body": {"return_token_ids": True}}
    apart, together = (c.chat.completions.create(**options) for c in (client, colocated))
    assert apart.model_extra["prompt_token_ids"] == together.model_extra["prompt_token_ids"]
    assert apart.choices[0].model_extra["token_ids"] == together.choices[0].model_extra["token_ids"]
    assert count < 60 or apart.usage.prompt_tokens >= 2000


def test_kv_really_moves(client: openai.OpenAI, decode_engine: ServerProcess) -> None:
    name = "embedded:kv_bytes_received_total"
    before = metric(decode_engine.url, name)
    client.chat.completions.create(**CHAT, max_tokens=3)
    assert metric(decode_engine.url, name) > before


async def test_the_async_client(orchestrator: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{orchestrator.url}/v1", api_key="none", max_retries=0) as client:

        async def ask() -> str:
            stream = await client.chat.completions.create(**CHAT, max_tokens=8, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        texts = await asyncio.gather(*(ask() for _ in range(4)))
        assert len(set(texts)) == 1
    becomes_idle(orchestrator)


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_differ_and_are_reproducible_by_seed(client: openai.OpenAI, stream: bool) -> None:
    options = CHAT | {"temperature": 1.5, "n": 3, "seed": 11, "max_tokens": 12}

    def texts() -> list[str]:
        found = dict.fromkeys(range(3), "")
        if stream:
            for chunk in client.chat.completions.create(**options, stream=True):
                for choice in chunk.choices:
                    found[choice.index] += choice.delta.content or ""
        else:
            for choice in client.chat.completions.create(**options).choices:
                found[choice.index] = choice.message.content
        return list(found.values())

    first = texts()
    assert len(set(first)) == 3
    assert texts() == first


def test_logprobs_whole_and_streamed_agree(client: openai.OpenAI) -> None:
    options = CHAT | {"logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    whole = client.chat.completions.create(**options)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    streamed = [
        entry
        for chunk in client.chat.completions.create(**options, stream=True)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert [e.token for e in streamed] == [e.token for e in entries]
    assert all(len(e.top_logprobs) == 2 for e in entries)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text(client: openai.OpenAI, stream: bool) -> None:
    options = CHAT | {"stop": [" Paris"], "max_tokens": 200}
    if stream:
        chunks = list(client.chat.completions.create(**options, stream=True))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**options)
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert finish == "stop"
    assert "Paris" not in text
    assert text


@pytest.mark.parametrize("stream", [False, True])
def test_return_token_ids(client: openai.OpenAI, stream: bool) -> None:
    options = CHAT | {"max_tokens": 7, "extra_body": {"return_token_ids": True}}
    whole = client.chat.completions.create(**options)
    prompt_ids = whole.model_extra["prompt_token_ids"]
    ids = whole.choices[0].model_extra["token_ids"]
    assert len(prompt_ids) == whole.usage.prompt_tokens
    assert len(ids) == whole.usage.completion_tokens
    if stream:
        chunks = list(client.chat.completions.create(**options, stream=True))
        assert [
            c.model_extra["prompt_token_ids"] for c in chunks if c.model_extra.get("prompt_token_ids")
        ] == [prompt_ids]
        assert [i for c in chunks for i in c.choices[0].model_extra.get("token_ids") or []] == ids


@pytest.mark.parametrize("stream", [False, True])
def test_completions_with_several_prompts(client: openai.OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {
        "model": "smollm2",
        "prompt": ["The sky is", "Once upon a"],
        "temperature": 0,
        "max_tokens": 5,
    }
    whole = client.completions.create(**options)
    texts = [choice.text for choice in whole.choices]
    assert len(texts) == 2
    assert whole.usage.completion_tokens == 10
    if stream:
        seen = ["", ""]
        for chunk in client.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        ):
            for choice in chunk.choices:
                seen[choice.index] += choice.text
        assert seen == texts
        assert chunk.usage.completion_tokens == 10
        assert chunk.usage.prompt_tokens == whole.usage.prompt_tokens


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]


# ---- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": "nope"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"messages": "hello"}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": 5}]}, openai.BadRequestError),
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"max_tokens": "many"}, openai.BadRequestError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"n": 0}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, openai.BadRequestError),
        ({"tools": [WEATHER_TOOL]}, openai.BadRequestError),
        ({"tool_choice": "required", "tools": [WEATHER_TOOL]}, openai.BadRequestError),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError),
        ({"logit_bias": {"99999999": 1}}, openai.BadRequestError),
    ],
    ids=str,
)
def test_bad_requests(
    client: openai.OpenAI, change: dict[str, Any], expected: type[openai.APIStatusError], stream: bool
) -> None:
    body = CHAT | {"max_tokens": 4, "stream": stream} | change
    with pytest.raises(expected) as raised:
        client.post("/chat/completions", body=body, cast_to=object)
    assert set(raised.value.body) == {"message", "type", "param", "code"}


def test_malformed_json(client: openai.OpenAI) -> None:
    answer = httpx.post(
        f"{client.base_url}chat/completions", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == 400


def test_prompt_ids_outside_the_vocabulary_kill_no_engine(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="smollm2", prompt=[99_999_999], max_tokens=2)
    assert client.completions.create(model="smollm2", prompt=[5, 6], max_tokens=2).choices


# ---- a scripted answer: reasoning and a tool call ----------------------------------------------------------


ASK: dict[str, Any] = {
    "model": "qwen3",
    "messages": [{"role": "user", "content": "A walk in Oslo?"}],
    "tools": [WEATHER_TOOL],
}


def test_reasoning_content_and_tool_call_whole(scripted: Scripted) -> None:
    reasoning, content, call = parts_of_the_script()
    answer = scripted.client.chat.completions.create(**ASK)
    message = answer.choices[0].message
    assert message.model_extra["reasoning"].strip() == reasoning.strip()
    assert message.content.strip() == content.strip()
    [tool_call] = message.tool_calls
    assert tool_call.function.name == call["name"]
    assert json.loads(tool_call.function.arguments) == call["arguments"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    becomes_idle(scripted.orchestrator)


def test_reasoning_content_and_tool_call_streamed(scripted: Scripted) -> None:
    reasoning, content, call = parts_of_the_script()
    seen = {"reasoning": "", "content": "", "arguments": "", "name": ""}
    ids = set()
    stream = scripted.client.chat.completions.create(
        **ASK, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            seen["content"] += delta.content or ""
            seen["reasoning"] += delta.model_extra.get("reasoning") or ""
            for part in delta.tool_calls or []:
                ids |= {part.id} - {None}
                seen["name"] += part.function.name or ""
                seen["arguments"] += part.function.arguments or ""
            finish = choice.finish_reason
    assert seen["reasoning"].strip() == reasoning.strip()
    assert seen["content"].strip() == content.strip()
    assert seen["name"] == call["name"]
    assert json.loads(seen["arguments"]) == call["arguments"]
    assert len(ids) == 1
    assert finish == "tool_calls"
    assert chunk.usage.completion_tokens_details.reasoning_tokens > 0
    becomes_idle(scripted.orchestrator)


def test_forced_tool_choice_is_refused_before_any_engine_when_engines_cannot_enforce_it(
    scripted: Scripted,
) -> None:
    with pytest.raises(openai.BadRequestError, match="structured_outputs"):
        scripted.client.chat.completions.create(**ASK, tool_choice="required")


# ---- deaths ------------------------------------------------------------------------------------------------


def test_decode_killed_mid_stream_is_an_error_event_and_a_closed_stream(
    qwen3_dir: Path, tmp_path: Path
) -> None:
    with ExitStack() as exits:
        stack = Scripted(exits, qwen3_dir, tmp_path, interval_ms=100)
        received: list[Any] = []

        def read_and_kill() -> None:
            for chunk in stack.client.chat.completions.create(**ASK, stream=True):
                received.append(chunk)
                if len(received) == 3:
                    stack.decode.kill(signal.SIGKILL)

        with pytest.raises(openai.APIError) as raised:
            read_and_kill()
        assert not isinstance(raised.value, openai.APIStatusError | openai.APIConnectionError)
        assert len(received) >= 3
        becomes_idle(stack.orchestrator)


def wait_for_leg(engine: ServerProcess) -> None:
    """The engine has taken a request."""
    while not metric(engine.url, RUNNING):
        time.sleep(0.02)


def test_prefill_killed_before_it_answers_is_a_503(qwen3_dir: Path, tmp_path: Path) -> None:
    with ExitStack() as exits:
        stack = Scripted(exits, qwen3_dir, tmp_path, interval_ms=1, first_token_ms=60_000)

        async def ask_and_kill() -> None:
            url = f"{stack.orchestrator.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                ask = asyncio.create_task(client.chat.completions.create(**ASK))
                await asyncio.to_thread(wait_for_leg, stack.prefill)
                await asyncio.to_thread(stack.prefill.kill, signal.SIGKILL)
                await ask

        with pytest.raises(openai.InternalServerError) as raised:
            asyncio.run(ask_and_kill())
        assert raised.value.status_code == 503
        becomes_idle(stack.orchestrator)


def test_a_client_that_leaves_leaves_nothing_behind(scripted: Scripted) -> None:
    with httpx.Client(base_url=scripted.orchestrator.url) as client:
        for _ in range(3):
            with client.stream("POST", "/v1/chat/completions", json=ASK | {"stream": True}) as response:
                next(response.iter_lines())
    becomes_idle(scripted.orchestrator)
    assert metric(scripted.prefill.url, LEASES) == 0
