"""Token IDs over turns, through all four hops: continuations, the client library, and the rollout example."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from render_tier.client import Client, Refused
from tests.support.processes import ServerProcess
from tests.support.stacks import becomes_idle

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
USER = {"role": "user", "content": "What is the capital of France? Answer in Ünïcode."}
MORE = {"role": "user", "content": "And of Italy?"}
FIELDS: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_tokens": 12}


@pytest.fixture
def client(orchestrator: ServerProcess, render_tier: ServerProcess) -> Iterator[Client]:
    with Client(orchestrator.url, render_url=render_tier.url) as client:
        yield client
    becomes_idle(orchestrator)


def test_the_second_prompt_begins_with_the_ids_of_the_first_turn(client: Client) -> None:
    first = client.chat({**FIELDS, "messages": [USER]}).samples[0]
    messages = [USER, first.message, MORE]
    asked = {**FIELDS, "messages": messages, "continuation": first.continuation, "continuation_strict": True}
    second = client.chat(asked).samples[0]
    before = first.prompt_token_ids + first.output_token_ids
    assert second.prompt_token_ids[: len(before)] == before
    assert len(second.prompt_token_ids) > len(before)
    assert second.output_token_ids
    with pytest.raises(Refused, match="message_differs") as refused:
        client.chat({**asked, "messages": [MORE, first.message, MORE]})
    assert (refused.value.status, refused.value.param) == (400, "messages.0")


def test_a_conversation_is_named_instead_of_carried(client: Client, orchestrator: ServerProcess) -> None:
    named: dict[str, Any] = {**FIELDS, "conversation_id": "a conversation"}
    first = client.chat({**named, "messages": [USER]})
    assert first.body["continuation"]["reason"] == "unknown_conversation"
    sample = first.samples[0]
    history = [USER, sample.message, MORE]
    insisting = {**named, "messages": history, "continuation_strict": True, "stream": True,
                 "stream_options": {"include_usage": True}}  # fmt: skip
    reply = httpx.post(f"{orchestrator.url}/v1/chat/completions", json=insisting, timeout=60)
    before = len(sample.prompt_token_ids + sample.output_token_ids)
    assert reply.headers["x-pd-continuation"] == f"exact; kept_tokens={before}"
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert chunks[-1]["continuation"] == {"exact": True, "kept_tokens": before}
    assert chunks[-1]["usage"]["prompt_tokens"] > before
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1])
    history += [{"role": "assistant", "content": said}, {"role": "user", "content": "And of Spain?"}]
    third = client.chat({**named, "messages": history, "continuation_strict": True})
    kept = third.body["continuation"]["kept_tokens"]
    assert kept == chunks[-1]["usage"]["total_tokens"]
    assert third.samples[0].prompt_token_ids[:before] == sample.prompt_token_ids + sample.output_token_ids
    edited = [MORE, *history[1:], {"role": "assistant", "content": "Madrid"}, MORE]
    report = client.chat({**named, "messages": edited}).body["continuation"]
    assert (report["exact"], report["reason"], report["message"]) == (False, "message_differs", 0)


def test_the_four_calls_one_by_one_are_the_chat(client: Client) -> None:
    request = {**FIELDS, "messages": [USER]}
    whole = client.chat(request).samples[0]
    prompt = client.render(request)
    assert prompt.token_ids == whole.prompt_token_ids
    assert prompt.fingerprint
    [sample] = client.generate(prompt)
    assert sample.output_token_ids == whole.output_token_ids
    message = client.derender(request, sample)["choices"][0]["message"]
    assert whole.message is not None
    assert message["content"] == whole.message["content"]


@pytest.fixture
def rollout_loop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rollout_loop", EXAMPLES / "rollout_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_trainer_gets_what_the_model_saw_and_wrote(client: Client, rollout_loop: ModuleType) -> None:
    def once_more(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
        return MORE if len(messages) < 4 else None

    rollout = rollout_loop.rollout_func(client, once_more, max_turns=3, **FIELDS, seed=1)
    batch = rollout(["Hi", [USER]], trainer=None)
    rows = zip(
        *(batch[name] for name in ("prompt_ids", "completion_ids", "mask", "logprobs", "messages")),
        strict=True,
    )
    for (prompt, completion, mask, logprobs, messages), first in zip(
        rows, ("Hi", USER["content"]), strict=True
    ):
        assert prompt == client.render({**FIELDS, "messages": [{"role": "user", "content": first}]}).token_ids
        assert len(completion) == len(mask) == len(logprobs)
        assert not any(value for value, own in zip(logprobs, mask, strict=True) if not own)
        assert sum(logprobs) < 0
        assert [message["role"] for message in messages] == ["user", "assistant"] * 2
        asked = client.render({**FIELDS, "messages": messages[:-1]})
        assert 0 < sum(mask) <= 24
        assert len(prompt) + len(completion) > len(asked.token_ids)
