"""The official `anthropic` client against all four hops as real processes.

SmolLM2 computes what the model can write; a played script gives the reasoning and tool calls that it cannot.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.support.messages_stream import read
from tests.support.processes import ServerProcess
from tests.support.stacks import LEASES, Scripted, becomes_idle, metric, parts_of_the_script

ASK: dict[str, Any] = {
    "model": "smollm2",
    "max_tokens": 24,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "extra_body": {"temperature": 0},
}
BODY: dict[str, Any] = {name: value for name, value in ASK.items() if name != "extra_body"} | {
    "temperature": 0
}
"""`ASK` on the wire; the client has no argument for the temperature any more."""
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WALK: dict[str, Any] = {
    "model": "qwen3",
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "A walk in Oslo?"}],
    "tools": [WEATHER],
}


def connect(process: ServerProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=process.url, api_key="none", max_retries=0, timeout=60)


def prompt_tokens(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


@pytest.fixture
def client(orchestrator: ServerProcess, prefill_engine: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with connect(orchestrator) as client:
        yield client
    becomes_idle(orchestrator)
    assert metric(prefill_engine.url, LEASES) == 0


@pytest.fixture
def walker(scripted: Scripted) -> Iterator[anthropic.Anthropic]:
    with connect(scripted.orchestrator) as client:
        yield client
    becomes_idle(scripted.orchestrator)


# ---- answers -----------------------------------------------------------------------------------------------


def test_whole_equals_streamed_equals_chat(client: anthropic.Anthropic, orchestrator: ServerProcess) -> None:
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    asked = {name: ASK[name] for name in ("model", "messages", "max_tokens")} | {"temperature": 0}
    chat = httpx.post(f"{orchestrator.url}/v1/chat/completions", json=asked).json()
    assert "".join(pieces) == whole.content[0].text == chat["choices"][0]["message"]["content"]
    assert len(pieces) > 3
    assert [block.text for block in final.content] == [block.text for block in whole.content]
    assert (final.stop_reason, final.model, final.role) == (whole.stop_reason, whole.model, whole.role)
    assert (
        final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
        == chat["usage"]["prompt_tokens"]
    )
    assert final.usage.output_tokens == whole.usage.output_tokens == chat["usage"]["completion_tokens"]
    assert whole.id.startswith("msg_")
    assert whole.id != final.id


def test_the_events_keep_the_rules(orchestrator: ServerProcess) -> None:
    events = []
    with httpx.stream("POST", f"{orchestrator.url}/v1/messages", json=BODY | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                event = httpx.Response(200, text=value).json()
                assert event["type"] == name
                events.append(event)
    message = read(events)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("end_turn", 8)
    becomes_idle(orchestrator)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_cuts_the_text(client: anthropic.Anthropic, stream: bool) -> None:
    options = ASK | {"stop_sequences": ["nowhere", " Paris"], "max_tokens": 200}
    if stream:
        with client.messages.stream(**options) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**options)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " Paris")
    assert message.content[0].text
    assert "Paris" not in message.content[0].text


def test_system_text_changes_the_prompt(client: anthropic.Anthropic) -> None:
    brief = "Answer briefly."
    bare = {"model": "smollm2", "messages": ASK["messages"]}
    counts = [
        client.messages.count_tokens(**bare, **more).input_tokens
        for more in (
            {},
            {"system": "Answer briefly."},
            {"system": [{"type": "text", "text": "Answer briefly."}]},
        )
    ]
    assert counts[1] == counts[2] != counts[0]
    answer = client.messages.create(**ASK, system=brief)
    assert prompt_tokens(answer) == counts[1]


async def test_the_async_client(orchestrator: ServerProcess) -> None:
    async with anthropic.AsyncAnthropic(base_url=orchestrator.url, api_key="none", max_retries=0) as client:

        async def ask() -> str:
            async with client.messages.stream(**ASK | {"max_tokens": 8}) as stream:
                return await stream.get_final_text()

        assert len(set(await asyncio.gather(*(ask() for _ in range(4))))) == 1
    becomes_idle(orchestrator)


def test_timing_and_decisions_for_those_who_ask(orchestrator: ServerProcess) -> None:
    headers = {"X-PD-Timing": "1", "X-PD-Explain": "1"}
    url = f"{orchestrator.url}/v1/messages"
    whole = httpx.post(url, json=BODY, headers=headers)
    assert whole.json()["pd_timing"]["completion_tokens"] == 8
    assert "x-pd-decisions" in whole.headers
    with connect(orchestrator) as client, client.messages.stream(**ASK, extra_headers=headers) as stream:
        assert stream.get_final_message().usage.output_tokens == 8
    streamed = httpx.post(url, json=BODY | {"stream": True}, headers=headers).text
    assert '"pd_timing":{' in streamed
    becomes_idle(orchestrator)


# ---- thinking and tools ------------------------------------------------------------------------------------


def test_thinking_text_and_a_call(walker: anthropic.Anthropic) -> None:
    reasoning, content, call = parts_of_the_script()
    whole = walker.messages.create(**WALK)
    thinking, text, use = whole.content
    assert (thinking.type, text.type, use.type) == ("thinking", "text", "tool_use")
    assert thinking.thinking.strip() == reasoning.strip()
    assert thinking.signature
    assert text.text.strip() == content.strip()
    assert (use.name, use.input) == (call["name"], call["arguments"])
    assert whole.stop_reason == "tool_use"
    assert 0 < whole.usage.output_tokens_details.thinking_tokens < whole.usage.output_tokens


def test_the_same_streamed(walker: anthropic.Anthropic) -> None:
    whole = walker.messages.create(**WALK)
    seen = {"text": "", "thinking": "", "input_json": ""}
    kinds = []
    with walker.messages.stream(**WALK) as stream:
        for event in stream:
            if event.type == "text":
                seen["text"] += event.text
            elif event.type == "thinking":
                seen["thinking"] += event.thinking
            elif event.type == "input_json":
                seen["input_json"] += event.partial_json
            elif event.type == "content_block_stop":
                kinds.append((event.index, event.content_block.type))
        final = stream.get_final_message()
    assert kinds == [(0, "thinking"), (1, "text"), (2, "tool_use")]
    assert seen["thinking"] == whole.content[0].thinking
    assert seen["text"] == whole.content[1].text
    assert final.content[2].input == whole.content[2].input
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)


def test_the_answer_goes_back_as_history(walker: anthropic.Anthropic) -> None:
    first = walker.messages.create(**WALK)
    use = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees, dry"}
    history = [
        *WALK["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = walker.messages.create(**WALK | {"messages": history})
    assert prompt_tokens(second) > prompt_tokens(first)


def test_a_call_that_the_limit_cuts(walker: anthropic.Anthropic) -> None:
    full = walker.messages.create(**WALK).usage.output_tokens
    cut = WALK | {"max_tokens": full - 8}
    whole = walker.messages.create(**cut)
    with walker.messages.stream(**cut) as stream:
        final = stream.get_final_message()
    assert whole.stop_reason == final.stop_reason == "max_tokens"
    assert whole.content[-1].type == "tool_use"
    assert [block.type for block in final.content] == [block.type for block in whole.content]
    assert final.content[-1].input == whole.content[-1].input


def test_a_forced_call_is_refused_where_engines_cannot_enforce_it(walker: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="structured_outputs"):
        walker.messages.create(**WALK, tool_choice={"type": "any"})


# ---- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": "nope"}, anthropic.NotFoundError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": 5}]}, anthropic.BadRequestError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"max_tokens": None}, anthropic.BadRequestError),
        ({"temperature": 9}, anthropic.BadRequestError),
        ({"stop_sequences": list("abcde")}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, anthropic.BadRequestError),
        ({"tools": [WEATHER]}, anthropic.BadRequestError),
    ],
    ids=str,
)
def test_bad_requests(
    client: anthropic.Anthropic,
    change: dict[str, Any],
    expected: type[anthropic.APIStatusError],
    stream: bool,
) -> None:
    with pytest.raises(expected) as raised:
        client.post("/v1/messages", body=BODY | {"stream": stream} | change, cast_to=object)
    body: Any = raised.value.body
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    kinds = {400: "invalid_request_error", 404: "not_found_error"}
    assert body["error"]["type"] == kinds[raised.value.status_code]


def test_counting_fails_in_the_same_shape(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.messages.count_tokens(model="nope", messages=ASK["messages"])
    assert raised.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError):
        client.post("/v1/messages/count_tokens", body={"model": "smollm2"}, cast_to=object)


def test_decode_killed_mid_stream_is_an_error_event(qwen3_dir: Path, tmp_path: Path) -> None:
    with ExitStack() as exits:
        stack = Scripted(exits, qwen3_dir, tmp_path, interval_ms=100)
        client = exits.enter_context(connect(stack.orchestrator))
        received: list[Any] = []

        def read_and_kill() -> None:
            with client.messages.create(**WALK, stream=True) as events:
                for event in events:
                    received.append(event)
                    if len(received) == 4:
                        stack.decode.kill(signal.SIGKILL)

        with pytest.raises(anthropic.APIStatusError) as raised:
            read_and_kill()
        assert raised.value.body["type"] == "error"  # type: ignore[index]
        assert received[-1].type != "message_stop"
        becomes_idle(stack.orchestrator)


def test_a_client_that_leaves_leaves_nothing_behind(scripted: Scripted) -> None:
    with httpx.Client(base_url=scripted.orchestrator.url) as client:
        for _ in range(3):
            with client.stream("POST", "/v1/messages", json=WALK | {"stream": True}) as response:
                next(response.iter_lines())
    becomes_idle(scripted.orchestrator)
    assert metric(scripted.prefill.url, LEASES) == 0
