"""Render replicas that die, or are told to stop, under load: no stream loses, repeats or changes anything."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from orchestrator.demo.script import WEATHER_TOOL
from tests.support import messages_stream, response_events
from tests.support.processes import ServerProcess, engine_server, orchestrator_server, render_tier_server
from tests.support.stacks import becomes_idle, metric

STREAMS = 12
"""Chat; half as many of Messages, and of Responses, beside them."""
ANSWER = (
    "<think>\nThe user asks about a walk tonight; é, 𓂀 and 🌦 are no letters of mine. "
    + "So it goes, step by step. " * 5
    + "\n</think>\n\nLet me look — first "
    + "here, then there; " * 5
    + '🌦.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ōsaka 🌦 '
    + "and on " * 6
    + '", "hours": 4}}\n</tool_call><|im_end|>'
)
ASK: dict[str, Any] = {
    "model": "qwen3",
    "messages": [{"role": "user", "content": "A walk in Oslo?"}],
    "tools": [WEATHER_TOOL],
    "logprobs": True,
    "return_token_ids": True,
}
MESSAGES: dict[str, Any] = {
    "model": "qwen3",
    "max_tokens": 2000,
    "messages": ASK["messages"],
    "tools": [{"name": "get_weather", "input_schema": WEATHER_TOOL["function"]["parameters"]}],
}
RESPONSES: dict[str, Any] = {
    "model": "qwen3",
    "input": ASK["messages"],
    "tools": [{"type": "function", **WEATHER_TOOL["function"]}],
    "include": ["message.output_text.logprobs"],
}
PARSERS = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice")


def render(model: Path, directory: Path, name: str) -> ServerProcess:
    options = (
        "--served-model-name",
        "qwen3",
        *PARSERS,
        "--state-key",
        "a",
        "--session-snapshot-tokens",
        "16",
    )
    return render_tier_server(model, *options, log_dir=directory, name=name)


class Backends:
    """What outlives a test: the render tier that survives, and an engine that plays the answer."""

    def __init__(self, exits: ExitStack, model: Path, directory: Path) -> None:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.token_ids: list[int] = tokenizer.encode(ANSWER, add_special_tokens=False).ids
        script = directory / "script.json"
        script.write_text(json.dumps([{"token_ids": self.token_ids, "interval_ms": 30}]))
        self.render = exits.enter_context(render(model, directory, "render-survivor"))
        options = (
            "--model",
            model,
            "--served-model-name",
            "qwen3",
            "--script",
            script,
            "--max-num-seqs",
            "64",
        )
        self.engine = exits.enter_context(engine_server(*options, log_dir=directory))


@pytest.fixture(scope="module")
def backends(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    with ExitStack() as exits:
        yield Backends(exits, qwen3_dir, tmp_path_factory.mktemp("deaths"))


async def read(client: httpx.AsyncClient, halfway: asyncio.Barrier) -> dict[str, Any]:
    """A streamed answer, put together."""
    seen: dict[str, Any] = {
        "reasoning": "",
        "content": "",
        "calls": [],
        "ids": [],
        "logprobs": 0,
        "finish": [],
    }
    async with client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as response:
        assert response.status_code == 200
        lines = [json.loads(line[6:]) async for line in _events(response, halfway)]
    for [choice] in (event["choices"] for event in lines):
        delta = choice["delta"]
        seen["reasoning"] += delta.get("reasoning") or ""
        seen["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            if call["id"]:
                seen["calls"].append([call["id"], call["function"]["name"], ""])
            seen["calls"][call["index"]][2] += call["function"]["arguments"] or ""
        seen["ids"] += choice["token_ids"] or []
        seen["logprobs"] += len((choice["logprobs"] or {}).get("content") or [])
        seen["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return seen


async def read_message(client: httpx.AsyncClient, halfway: asyncio.Barrier) -> dict[str, Any]:
    async with client.stream("POST", "/v1/messages", json={**MESSAGES, "stream": True}) as response:
        assert response.status_code == 200
        return messages_stream.read([json.loads(line[6:]) async for line in _events(response, halfway)])


async def read_response(client: httpx.AsyncClient, halfway: asyncio.Barrier) -> dict[str, Any]:
    async with client.stream("POST", "/v1/responses", json={**RESPONSES, "stream": True}) as response:
        assert response.status_code == 200
        return response_events.read([json.loads(line[6:]) async for line in _events(response, halfway)])


async def _events(response: httpx.Response, halfway: asyncio.Barrier) -> AsyncIterator[str]:
    number = 0
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            number += 1
            yield line
            if number == 20:
                await halfway.wait()


@pytest.mark.parametrize(
    ("sessions", "sign"),
    [(True, signal.SIGKILL), (True, signal.SIGTERM), (False, signal.SIGKILL)],
    ids=["sessions, killed", "sessions, told to stop", "single calls, killed"],
)
def test_every_stream_goes_on_elsewhere(
    backends: Backends, qwen3_dir: Path, tmp_path: Path, sessions: bool, sign: signal.Signals
) -> None:
    config = tmp_path / "orchestrator.toml"
    config.write_text(f"[sessions]\nenabled = {str(sessions).lower()}\n[health]\ninterval = 0.2\n")
    with ExitStack() as exits:
        doomed = exits.enter_context(render(qwen3_dir, tmp_path, "render-doomed"))
        members = ("--render", doomed.url, "--render", backends.render.url, "--decode", backends.engine.url)
        orchestrator = exits.enter_context(
            orchestrator_server(*members, "--config", config, log_dir=tmp_path)
        )
        whole = (
            httpx.post(f"{orchestrator.url}/v1/chat/completions", json=ASK, timeout=60)
            .raise_for_status()
            .json()
        )

        message = httpx.post(f"{orchestrator.url}/v1/messages", json=MESSAGES, timeout=60)
        whole_message = message.raise_for_status().json()

        response = httpx.post(f"{orchestrator.url}/v1/responses", json=RESPONSES, timeout=60)
        whole_response = response.raise_for_status().json()

        async def run() -> tuple[list[dict[str, Any]], ...]:
            async with httpx.AsyncClient(base_url=orchestrator.url, timeout=60) as client:
                halfway = asyncio.Barrier(2 * STREAMS + 1)
                streams = [asyncio.create_task(read(client, halfway)) for _ in range(STREAMS)]
                messages = [asyncio.create_task(read_message(client, halfway)) for _ in range(STREAMS // 2)]
                responses = [asyncio.create_task(read_response(client, halfway)) for _ in range(STREAMS // 2)]
                await halfway.wait()
                held = [metric(tier.url, "render_tier_session_streams") for tier in (doomed, backends.render)]
                assert all(held) if sessions else not any(held)
                await asyncio.to_thread(doomed.kill, sign)
                kinds = (streams, messages, responses)
                return tuple([await asyncio.gather(*each) for each in kinds])

        chats, messages, responses = asyncio.run(run())
        for seen in chats:
            check(seen, whole, backends.token_ids)
        for message_seen in messages:
            check_message(message_seen, whole_message)
        for response_seen in responses:
            check_response(response_seen, whole_response)
        becomes_idle(orchestrator)
        assert metric(orchestrator.url, "pd_session_streams") == 0
        assert metric(backends.render.url, "render_tier_session_streams") == 0


def check(seen: dict[str, Any], whole: dict[str, Any], token_ids: list[int]) -> None:
    """A stream is the whole answer, derendered at once; every token of the engine is accounted for."""
    message = whole["choices"][0]["message"]
    assert seen["ids"] == token_ids == whole["choices"][0]["token_ids"]
    assert seen["logprobs"] == len(token_ids) == whole["usage"]["completion_tokens"]
    assert seen["reasoning"] == message["reasoning"]
    assert seen["content"] == (message["content"] or "")
    [[identifier, name, arguments]] = seen["calls"]
    assert identifier.startswith("chatcmpl-tool-")
    assert name == "get_weather"
    assert arguments == message["tool_calls"][0]["function"]["arguments"]
    assert seen["finish"] == ["tool_calls"]


def check_message(seen: dict[str, Any], whole: dict[str, Any]) -> None:
    """The same blocks; ids and signatures are of each request's own."""
    kept = [
        [
            {name: value for name, value in block.items() if name not in ("id", "signature")}
            for block in blocks
        ]
        for blocks in (messages_stream.with_input(seen)["content"], whole["content"])
    ]
    assert kept[0] == kept[1]
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert (seen["stop_reason"], seen["usage"]) == (whole["stop_reason"], whole["usage"])


def check_response(seen: dict[str, Any], whole: dict[str, Any]) -> None:
    """The same items, each with its logprobs; ids are of each request's own."""
    assert response_events.without_ids(seen["output"]) == response_events.without_ids(whole["output"])
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][1]["content"][0]["logprobs"]
    assert (seen["status"], seen["usage"]) == (whole["status"], whole["usage"])
