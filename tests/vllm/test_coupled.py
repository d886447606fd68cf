"""What a client gets over four hops is what vLLM's own `vllm serve` gives it, with the same weights in
float32: one engine with its own tokenizer, template, detokenizer and stop strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.completions import MODEL, client, events, whole
from tests.support.pd_stack import Stack, everything_becomes_free, pulled, stranded
from tests.support.processes import ServerProcess

CHAT, COMPLETIONS = "/chat/completions", "/completions"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


PLAIN = [user("Why do ships float?")]
CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": PLAIN},
    "turns": {
        "messages": [
            {"role": "system", "content": "You answer in French."},
            user("What is the capital of Japan?"),
            said("Tokyo."),
            user("And of Norway? 🙂"),
        ]
    },
    "ends by itself": {"messages": [user("Say hello.")], "max_completion_tokens": 200},
    "stop string": {"messages": PLAIN, "stop": [" of", "water"]},
    "stop string that is kept": {"messages": PLAIN, "stop": [" of"], "include_stop_str_in_output": True},
    "stop token": {"messages": PLAIN, "stop_token_ids": [282]},
    "logprobs": {"messages": PLAIN, "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 8},
    "seeded choices": {"messages": PLAIN, "n": 2, "temperature": 0.8, "top_p": 0.9, "seed": 11},
    "penalties": {"messages": PLAIN, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    "at least": {"messages": [user("Say hello.")], "min_tokens": 20, "max_completion_tokens": 24},
    "biased": {"messages": PLAIN, "logit_bias": {"28": -100, "284": -100}},
    "part of a turn": {
        "messages": [user("Why do ships float?"), said("Ships float because of a law by")],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
}
TEXTS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "The three laws of thermodynamics are"},
    "token ids": {"prompt": [504, 2380, 19174, 282]},
    "two prompts": {"prompt": ["Once upon a time there was a", "def fibonacci(n):\n"]},
    "stop string": {"prompt": "Q: Who wrote 'War and Peace'?\nA:", "stop": "\n"},
    "logprobs": {"prompt": "In 1969, the first humans", "logprobs": 3, "max_tokens": 8},
    "seeded choices": {"prompt": "A haiku:", "n": 2, "temperature": 0.8, "seed": 5},
    "unicode": {"prompt": "東京は日本の首都で、🙂"},
}


@pytest.fixture(autouse=True)
def settled(stack: Stack) -> Iterator[None]:
    """After each test nothing is left on the engines or in the orchestrators, nor was left to a lease."""
    before = stranded(stack.apart)
    yield
    everything_becomes_free(stack)
    assert stranded(stack.apart) == before


def as_one(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer that a stream's chunks add up to."""
    choices: dict[int, dict[str, Any]] = {}
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"], {"index": part["index"], "text": "", "finish_reason": None, "logprobs": []}
            )
            delta = part.get("delta", {"content": part.get("text")})
            choice["text"] += delta.get("content") or ""
            choice["role"] = choice.get("role") or delta.get("role")
            for field in ("finish_reason", "stop_reason"):
                choice[field] = part.get(field) or choice.get(field)
            choice["logprobs"] += logprobs_of(part)
    [usage] = usages
    return {"choices": [choices[i] for i in sorted(choices)], "usage": counts(usage)}


def as_said(reply: dict[str, Any]) -> dict[str, Any]:
    choices = [
        {
            "index": choice["index"],
            "text": choice["message"]["content"] if "message" in choice else choice["text"],
            "role": choice.get("message", {}).get("role"),
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice.get("stop_reason"),
            "logprobs": logprobs_of(choice),
        }
        for choice in reply["choices"]
    ]
    return {"choices": choices, "usage": counts(reply["usage"])}


def counts(usage: dict[str, Any]) -> dict[str, int]:
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def logprobs_of(choice: dict[str, Any]) -> list[Any]:
    """One entry per token: its text, bytes or offset, likelihood, and those of the others asked for."""
    found = choice.get("logprobs")
    if not found:
        return []
    if "content" in found:
        return [
            (
                entry["token"],
                entry["bytes"],
                near(entry["logprob"]),
                [(other["token"], near(other["logprob"])) for other in entry["top_logprobs"]],
            )
            for entry in found["content"] or []
        ]
    columns = (found[name] for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs"))
    return [
        (token, offset, near(logprob), [(other, near(value)) for other, value in top.items()])
        for token, offset, logprob, top in zip(*columns, strict=True)
    ]


def near(logprob: float) -> Any:
    return pytest.approx(logprob, abs=1e-3)


async def answers(stack: Stack, coupled: ServerProcess, path: str, sent: dict[str, Any], stream: bool) -> Any:
    """The coupled engine's, and that of four hops, for which KV has moved."""
    found = []
    before = pulled(stack)
    for server in (coupled, stack.apart):
        async with client(server) as http:
            if stream:
                options = {"stream_options": {"include_usage": True}}
                found.append(as_one(await events(http, sent | options, path)))
            else:
                found.append(as_said(await whole(http, sent, path)))
    assert pulled(stack) > before
    return found


STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@STREAM
@pytest.mark.parametrize("case", CHATS)
async def test_a_chat_is_what_one_coupled_engine_says(
    case: str, stream: bool, stack: Stack, coupled: ServerProcess
) -> None:
    fixed = {"model": MODEL, "temperature": 0, "max_completion_tokens": 24}
    expected, mine = await answers(stack, coupled, CHAT, fixed | CHATS[case], stream)
    assert mine == expected
    assert all(choice["text"] for choice in mine["choices"])
    if "logprobs" in case:
        assert len(mine["choices"][0]["logprobs"]) == mine["usage"]["completion_tokens"]


@STREAM
@pytest.mark.parametrize("case", TEXTS)
async def test_a_completion_is_what_one_coupled_engine_says(
    case: str, stream: bool, stack: Stack, coupled: ServerProcess
) -> None:
    fixed = {"model": MODEL, "temperature": 0, "max_tokens": 16}
    expected, mine = await answers(stack, coupled, COMPLETIONS, fixed | TEXTS[case], stream)
    assert mine == expected
    assert all(choice["text"] for choice in mine["choices"])
