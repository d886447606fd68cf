"""Clients of token IDs over real processes: the orchestrator answers what one engine answers alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.processes import ServerProcess
from tests.support.stacks import becomes_idle

GENERATE = "/inference/v1/generate"
TEXT = "The capital of France is"


@pytest.fixture
def ids(orchestrator: ServerProcess) -> list[int]:
    """Of the prompt, by the orchestrator's own route."""
    found: list[int] = post(orchestrator, "/tokenize", {"model": "smollm2", "prompt": TEXT})["tokens"]
    return found


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def events(server: ServerProcess, body: dict[str, Any]) -> list[dict[str, Any]]:
    with httpx.stream("POST", server.url + GENERATE, json=body | {"stream": True}, timeout=60) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_the_render_tiers_tokenizer_is_there(orchestrator: ServerProcess, ids: list[int]) -> None:
    assert post(orchestrator, "/detokenize", {"tokens": ids})["prompt"] == TEXT
    for path, body in (("/tokenize", {}), ("/detokenize", {"tokens": ["x"]}), ("/tokenize", {"prompt": 1})):
        reply = httpx.post(orchestrator.url + path, json=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"]


def test_whole_and_streamed_equal_one_engine(
    orchestrator: ServerProcess, colocated_engine: ServerProcess, ids: list[int]
) -> None:
    body = {
        "token_ids": ids,
        "sampling_params": {"temperature": 0, "max_tokens": 12, "logprobs": 2, "prompt_logprobs": 1},
        "return_token_ids": True,
    }
    apart, alone = (post(server, GENERATE, body) for server in (orchestrator, colocated_engine))
    assert apart["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]
    for answer in (apart, alone):
        answer["usage"].pop("prompt_tokens_details")
    for name in ("usage", "prompt_token_ids", "output_mode"):
        assert apart[name] == alone[name]
    assert len(apart["prompt_logprobs"]) == len(ids)
    for one, other in zip(apart["prompt_logprobs"][1:], alone["prompt_logprobs"][1:], strict=True):
        assert {key: entry["rank"] for key, entry in one.items()} == {
            key: entry["rank"] for key, entry in other.items()
        }
    del body["sampling_params"]["prompt_logprobs"]
    streamed = events(orchestrator, body)
    joined = [token for chunk in streamed for token in chunk["choices"][0]["token_ids"]]
    assert joined == apart["choices"][0]["token_ids"]
    assert streamed[-1]["choices"][0]["finish_reason"] == apart["choices"][0]["finish_reason"]
    becomes_idle(orchestrator)


def test_an_id_beyond_the_vocabulary_reaches_no_engine(orchestrator: ServerProcess) -> None:
    body = {"token_ids": [1, 10**6], "sampling_params": {"max_tokens": 1}}
    reply = httpx.post(orchestrator.url + GENERATE, json=body)
    assert reply.status_code == 400
    assert "outside the vocabulary" in reply.json()["error"]["message"]
