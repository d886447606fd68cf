"""``/inference/v1/generate`` over a real pair is what one vLLM engine answers when it is asked directly."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.completions import events, whole
from tests.support.pd_stack import Stack, everything_becomes_free
from tests.support.processes import ServerProcess

GENERATE = "/inference/v1/generate"


def at(server: ServerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=240, trust_env=False)


def without_what_differs(message: dict[str, Any]) -> dict[str, Any]:
    """Ids, times, and how much was found in which cache."""
    return {name: value for name, value in message.items() if name not in ("request_id", "created", "usage")}


def rounded(value: Any) -> Any:
    """Numbers as far as float32 sums in another order agree."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream, however its tokens were put into chunks."""
    *parts, end = chunks
    choices = [choice for part in parts for choice in part["choices"]]
    return {
        "first": set(parts[0]),
        "others": {frozenset(part) for part in parts[1:]},
        "prompt": parts[0]["prompt_token_ids"],
        "choice": {frozenset(choice) for choice in choices},
        "token_ids": [token for choice in choices for token in choice["token_ids"]],
        "logprobs": [entry for choice in choices for entry in choice["logprobs"]["content"]],
        "ends": [(choice["finish_reason"], choice["stop_reason"]) for choice in choices][-1],
        "counts": {frozenset(part["usage"]) for part in parts},
        "end": {name: end[name] for name in ("choices", "output_mode")},
    }


@pytest.mark.parametrize("index", [3, 17])
async def test_answers_are_those_of_one_engine(stack: Stack, prompts: list[list[int]], index: int) -> None:
    sampling = {"temperature": 0, "max_tokens": 12, "logprobs": 2}
    sent = {"token_ids": prompts[index], "sampling_params": sampling, "return_token_ids": True}
    scored = sent | {"sampling_params": sampling | {"prompt_logprobs": 1}}
    told = sent | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    async with at(stack.apart) as apart, at(stack.pair.decode) as alone:
        ours, theirs = [await whole(http, scored, GENERATE) for http in (apart, alone)]
        our_chunks, their_chunks = [await events(http, told, GENERATE) for http in (apart, alone)]
    assert len(theirs["prompt_logprobs"]) == len(prompts[index])
    assert without_what_differs(ours) == rounded(without_what_differs(theirs))
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [ours["usage"][name] for name in counts] == [theirs["usage"][name] for name in counts]
    assert joined(our_chunks) == rounded(joined(their_chunks))
    assert our_chunks[-1]["usage"]["completion_tokens"] == their_chunks[-1]["usage"]["completion_tokens"]
    everything_becomes_free(stack)
