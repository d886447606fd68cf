"""Clients as users have them, against render tier, orchestrator and a real pair of vLLM engines over NIXL:
`openai`, vLLM's load generator, and the calls that llm-d's coordinator and Dynamo's endpoint picker make.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from tests.support import vllm
from tests.support.completions import MODEL
from tests.support.pd_stack import IDLE, Stack, becomes_free, everything_becomes_free, metric
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
QUESTION = [{"role": "user", "content": "Why do ships float?"}]
TEMPLATE = Path(__file__).parent / "calling.jinja"
MOVED = "vllm:nixl_bytes_transferred_sum"


@dataclass(frozen=True)
class Front:
    """Our two services before the pair, with a template that knows tools."""

    stack: Stack
    render: ServerProcess
    orchestrator: ServerProcess

    def moved(self) -> float:
        """Bytes of KV that the decode engine has pulled so far."""
        return metric(self.stack.pair.decode, MOVED)


@pytest.fixture(scope="module")
def front(
    started_stack: Stack, smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    started_stack.revive()
    logs = tmp_path_factory.mktemp("clients")
    parsers = ("--chat-template", TEMPLATE, "--tool-call-parser", "hermes", "--enable-auto-tool-choice")
    with ExitStack() as exits:
        render = exits.enter_context(
            render_tier_server(smollm2_dir, "--served-model-name", MODEL, *parsers, log_dir=logs)
        )
        pair = started_stack.pair
        members = ("--render", render.url, "--prefill", pair.prefill.url, "--decode", pair.decode.url)
        yield Front(started_stack, render, exits.enter_context(orchestrator_server(*members, log_dir=logs)))


@pytest.fixture(autouse=True)
def nothing_is_left(front: Front) -> Iterator[None]:
    """After each test the engines hold nothing, and KV has moved between them."""
    before = front.moved()
    yield
    becomes_free((front.orchestrator, IDLE))
    everything_becomes_free(front.stack)
    assert front.moved() > before


# ---- openai ------------------------------------------------------------------------------------------------


@pytest.fixture
def client(front: Front) -> Iterator[OpenAI]:
    url = f"{front.orchestrator.url}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def asked(**options: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24} | options


def test_openai_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.create(**asked())
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(**asked(), stream=True, stream_options=usage))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert [model.id for model in client.models.list()] == [MODEL]


def test_openai_completions_with_stop_and_logprobs(client: OpenAI) -> None:
    sent = {"model": MODEL, "prompt": "One, two, three, four,", "temperature": 0, "max_tokens": 16}
    whole = client.completions.create(**sent, logprobs=2, stop=" eight")
    pieces = client.completions.create(**sent, stop=" eight", stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces if chunk.choices) == whole.choices[0].text
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].text.endswith(" seven,")
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.token_logprobs or []) == len(logprobs.tokens or []) > 0


async def test_openai_async_many_at_a_time(front: Front) -> None:
    url = f"{front.orchestrator.url}/v1"
    questions = ["Why do ships float?", "What is a lighthouse?", "Name three rivers.", "Say hello."]

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:

        async def whole(text: str) -> str | None:
            sent = asked(messages=[{"role": "user", "content": text}])
            return (await client.chat.completions.create(**sent)).choices[0].message.content

        async def streamed(text: str) -> str:
            sent = asked(messages=[{"role": "user", "content": text}])
            stream = await client.chat.completions.create(**sent, stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        wholes = await asyncio.gather(*map(whole, questions))
        assert await asyncio.gather(*map(streamed, questions)) == wholes
    assert len(set(wholes)) == len(questions)


def test_openai_errors_are_its_classes(client: OpenAI) -> None:
    with pytest.raises(NotFoundError):
        client.chat.completions.create(**asked(model="another"))
    with pytest.raises(BadRequestError, match=r"max_tokens|context"):
        client.chat.completions.create(**asked(max_tokens=100_000))
    client.chat.completions.create(**asked(max_tokens=2))


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def turns(*cities: str) -> list[dict[str, Any]]:
    """A conversation in which the model has called the function for each city but the last."""
    messages: list[dict[str, Any]] = []
    for number, city in enumerate(cities):
        messages.append({"role": "user", "content": f"What is the weather in {city}?"})
        if city is cities[-1]:
            return messages
        function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Cloudy."})
        messages.append({"role": "assistant", "content": f"It is cloudy in {city}."})
    return messages


def test_openai_tools(client: OpenAI) -> None:
    """A model of 135M parameters calls a function when it has seen how, if not for the right city."""
    sent = asked(messages=turns("Paris", "Rome", "Madrid", "Oslo"), tools=[WEATHER], max_tokens=64)
    whole = client.chat.completions.create(**sent).choices[0]
    assert whole.finish_reason == "tool_calls"
    [call] = whole.message.tool_calls or []
    assert call.function.name == "get_weather"
    assert [type(value) for value in json.loads(call.function.arguments).values()] == [str]

    with client.chat.completions.stream(**sent) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert final.finish_reason == "tool_calls"
    [streamed] = final.message.tool_calls or []
    assert streamed.function.name == call.function.name
    assert streamed.function.arguments == call.function.arguments

    # The loop that a user writes: the result goes back, the model answers in words.
    messages = [
        *sent["messages"],
        whole.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Cloudy."},
    ]
    answer = client.chat.completions.create(**sent | {"messages": messages}).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content
    assert not answer.message.tool_calls


# ---- vllm bench serve --------------------------------------------------------------------------------------


def test_vllms_load_generator(front: Front, smollm2_dir: Path, tmp_path: Path) -> None:
    requests, tokens = 8, 12
    command = [
        *(vllm.environment() / "bin" / "vllm", "bench", "serve", "--backend", "openai-chat"),
        *("--base-url", front.orchestrator.url, "--endpoint", CHAT),
        *("--model", smollm2_dir, "--served-model-name", MODEL, "--dataset-name", "random"),
        *("--random-input-len", 48, "--random-output-len", tokens, "--num-prompts", requests),
        *("--max-concurrency", 4, "--ignore-eos", "--temperature", 0, "--seed", 3, "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"),
        *("--save-result", "--result-dir", tmp_path, "--result-filename", "result.json"),
    ]
    done = subprocess.run(
        [str(word) for word in command],
        env=vllm.process_environment(tmp_path / "scratch", threads=1),
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == requests
    assert result["total_output_tokens"] == requests * tokens
    assert not result.get("failed")
    for metric_name in ("ttft", "itl", "tpot", "e2el"):
        median, worst = result[f"p50_{metric_name}_ms"], result[f"p99_{metric_name}_ms"]
        assert 0 < median <= worst, metric_name
    print(json.dumps({name: value for name, value in result.items() if name.startswith(("p50", "p99"))}))


# ---- gateways that use the render tier themselves ----------------------------------------------------------


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=120, trust_env=False) as made:
        yield made


def post(http: httpx.Client, url: str, body: dict[str, Any]) -> Any:
    response = http.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def prompt_ids(client: OpenAI, sent: dict[str, Any]) -> list[int]:
    """Of the orchestrator's own render hop."""
    whole = client.chat.completions.create(**sent, extra_body={"return_token_ids": True})
    ids: list[int] = (whole.model_extra or {})["prompt_token_ids"]
    return ids


def over_generate(http: httpx.Client, stack: Stack, rendered: dict[str, Any]) -> dict[str, Any]:
    """llm-d's prefill and decode in its `generate` format: params travel in `sampling_params.extra_args`."""
    ids, name = rendered["token_ids"], rendered["request_id"]
    wanted = {"do_remote_decode": True, "do_remote_prefill": False}
    prefill = {
        "request_id": f"{name}-p",
        "model": MODEL,
        "token_ids": ids,
        "sampling_params": {"max_tokens": 1, "extra_args": {"kv_transfer_params": wanted}},
    }
    params = post(http, stack.pair.prefill.url + GENERATE, prefill)["kv_transfer_params"]
    sampling = rendered["sampling_params"] | {"extra_args": {"kv_transfer_params": params}}
    decode = {"request_id": f"{name}-d", "model": MODEL, "token_ids": ids, "sampling_params": sampling}
    reply: dict[str, Any] = post(http, stack.pair.decode.url + GENERATE, decode)
    return reply


def test_llmd_coordinator(front: Front, client: OpenAI, http: httpx.Client) -> None:
    """Its render step sends the client's body as it came to `<path>/render` and reads `token_ids`; a
    completion is a list of one. Derender gets what vLLM's documentation says: the engine's answer, the number
    of prompt tokens and the client's request."""
    sent = asked(stream=False)
    rendered = post(http, f"{front.render.url}{CHAT}/render", sent)
    assert rendered["token_ids"] == prompt_ids(client, sent)
    assert not (rendered.get("features") or {}).get("mm_hashes")
    generated = over_generate(http, front.stack, rendered)
    derendered = post(
        http,
        f"{front.render.url}{CHAT}/derender",
        {
            "model": MODEL,
            "generate_response": generated,
            "prompt_tokens": len(rendered["token_ids"]),
            "chat_request": sent,
        },
    )
    expected = client.chat.completions.create(**sent)
    assert derendered["choices"][0]["message"]["content"] == expected.choices[0].message.content
    assert derendered["id"] == generated["request_id"]
    assert expected.usage is not None
    assert derendered["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert derendered["usage"]["completion_tokens"] == expected.usage.completion_tokens

    text = {"model": MODEL, "prompt": "The three laws of", "temperature": 0, "max_tokens": 8}
    [one] = post(http, f"{front.render.url}{COMPLETIONS}/render", text)
    generated = over_generate(http, front.stack, one)
    derendered = post(
        http,
        f"{front.render.url}{COMPLETIONS}/derender",
        {
            "model": MODEL,
            "generate_responses": [generated],
            "prompt_tokens": [len(one["token_ids"])],
            "completion_request": text,
        },
    )
    assert derendered["choices"][0]["text"] == client.completions.create(**text).choices[0].text


def test_derender_chunk_by_chunk(front: Front, client: OpenAI, http: httpx.Client) -> None:
    """The streaming form: every chunk of the engine is sent with the state of the last answer."""
    sent = asked(stream=True)
    rendered = post(http, f"{front.render.url}{CHAT}/render", sent)
    text, state = "", None
    with http.stream("POST", front.stack.pair.decode.url + GENERATE, json=rendered) as response:
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    for chunk in chunks:
        if not chunk["choices"]:
            continue
        answer = post(
            http,
            f"{front.render.url}{CHAT}/derender",
            {
                "stream": True,
                "model": MODEL,
                "generate_chunk": chunk,
                "stream_state": state,
                "chat_request": sent,
                "prompt_token_ids": rendered["token_ids"],
            },
        )
        state = answer["stream_state"]
        text += "".join(c["delta"].get("content") or "" for c in answer["chunk"]["choices"])
    assert text == client.chat.completions.create(**asked()).choices[0].message.content


def test_dynamo_endpoint_picker(front: Front, client: OpenAI, http: httpx.Client) -> None:
    """It forwards the chat body unchanged, its own `nvext` in it, reads `token_ids` for routing, and tells
    failures apart by status."""
    sent = asked(stream=True, stream_options={"include_usage": True}) | {"user": "u"}
    url = f"{front.render.url}{CHAT}/render"
    rendered = post(http, url, sent | {"nvext": {"agent_hints": {"priority": 1}}})
    assert rendered["token_ids"] == prompt_ids(client, asked())
    assert http.post(url, json=sent | {"model": "another"}).status_code == 404
    assert http.post(url, json=sent | {"messages": "no list"}).status_code == 400
