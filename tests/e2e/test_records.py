"""The record of an answer is the answer: derender makes every byte of it again from the record alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.demo.script import WEATHER_TOOL
from render_tier.protocol.record import Record
from tests.support.processes import ServerProcess
from tests.support.records import Kind, streams_again, whole_again, without_record
from tests.support.stacks import Scripted, becomes_idle

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
CHATS: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something in Japanese."}]}


def whole(orchestrator: ServerProcess, kind: Kind, request: dict[str, Any]) -> tuple[bytes, Record]:
    reply = httpx.post(orchestrator.url + PATHS[kind], json=request, timeout=60)
    assert reply.status_code == 200, reply.text
    return without_record(reply.content)


def streamed(
    orchestrator: ServerProcess, kind: Kind, request: dict[str, Any]
) -> tuple[dict[int, list[bytes]], Record]:
    """The data of each choice's events, by its number, and the record, which comes last."""
    found: dict[int, list[bytes]] = {}
    with httpx.stream("POST", orchestrator.url + PATHS[kind], json=request, timeout=60) as reply:
        assert reply.status_code == 200, reply.read()
        lines = [line.removeprefix("data: ").encode() for line in reply.iter_lines() if line]
    assert lines.pop() == b"[DONE]"
    _, record = without_record(lines.pop())
    for line in lines:
        [choice] = json.loads(line)["choices"]
        found.setdefault(choice["index"], []).append(line)
    return found, record


def said(answer: bytes) -> list[Any]:
    """Ids of calls are each answer's own."""
    choices = json.loads(answer)["choices"]
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls", ()):
            del call["id"]
    return [(c.get("message") or c["text"], c["finish_reason"], c["stop_reason"]) for c in choices]


def holds(orchestrator: ServerProcess, render: ServerProcess, kind: Kind, request: dict[str, Any]) -> Record:
    """The law, whichever way the request goes."""
    if request.get("stream"):
        chunks, record = streamed(orchestrator, kind, request)
        assert streams_again(render.url, kind, request, record) == chunks
    else:
        answer, record = whole(orchestrator, kind, request)
        assert whole_again(render.url, kind, request, record) == answer
        plain = httpx.post(
            orchestrator.url + PATHS[kind], json=request | {"return_token_ids": False}, timeout=60
        )
        assert said(plain.content) == said(answer)
    assert record.fingerprint == httpx.get(f"{render.url}/ready").json()["fingerprint"]
    return record


@st.composite
def requests(draw: st.DrawFn) -> tuple[Kind, dict[str, Any]]:
    kind: Kind = draw(st.sampled_from(["chat", "completions"]))
    request: dict[str, Any] = {
        "model": "smollm2",
        "temperature": draw(st.sampled_from([0.7, 1.8])),
        "seed": draw(st.integers(0, 1000)),
        "n": draw(st.integers(1, 2)),
        "max_tokens": draw(st.integers(1, 10)),
        "return_token_ids": True,
    } | draw(st.sampled_from([{}, STREAMED]))
    if draw(st.booleans()):
        request["stop"] = draw(st.sampled_from([["e"], [" the", "\n"], ["o", "qzx"]]))
    if kind == "chat":
        return kind, request | CHATS | draw(st.sampled_from([{}, {"logprobs": True, "top_logprobs": 2}]))
    prompt = draw(st.sampled_from(["日本", ["One", "Two, three"], [[504, 3575], [282]]]))
    return kind, request | {"prompt": prompt} | draw(st.sampled_from([{}, {"logprobs": 1}]))


@given(requests())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_answer_is_made_again_from_its_record(
    orchestrator: ServerProcess, render_tier: ServerProcess, drawn: tuple[Kind, dict[str, Any]]
) -> None:
    kind, request = drawn
    record = holds(orchestrator, render_tier, kind, request)
    prompts = len(request["prompt"]) if isinstance(request.get("prompt"), list) else 1
    assert [len(reply.choices) for reply in record.generate_responses] == [request["n"]] * prompts
    becomes_idle(orchestrator)


@pytest.mark.parametrize("way", [{}, STREAMED], ids=["whole", "streamed"])
def test_reasoning_and_calls_are_made_again(scripted: Scripted, way: dict[str, Any]) -> None:
    request = (
        CHATS
        | way
        | {
            "model": "qwen3",
            "tools": [WEATHER_TOOL],
            "max_tokens": 400,
            "return_token_ids": True,
            "logprobs": True,
        }
    )
    record = holds(scripted.orchestrator, scripted.render, "chat", request)
    [choice] = record.generate_responses[0].choices
    assert choice.logprobs is not None
    assert [entry.token_id for entry in choice.logprobs.content or []] == choice.token_ids
    # What is not to be seen is not in a record either.
    hidden = request | {"include_reasoning": False}
    reply = httpx.post(f"{scripted.orchestrator.url}{PATHS['chat']}", json=hidden, timeout=60)
    assert b'"record"' not in reply.content


def test_only_who_asks_gets_a_record(orchestrator: ServerProcess) -> None:
    ask = CHATS | {"model": "smollm2", "max_tokens": 2}
    for more in ({}, STREAMED, {"stream": True, "return_token_ids": True}):
        reply = httpx.post(f"{orchestrator.url}{PATHS['chat']}", json=ask | more, timeout=60)
        assert reply.status_code == 200
        assert b'"record"' not in reply.content
