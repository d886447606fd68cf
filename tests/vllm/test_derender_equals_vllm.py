"""`render-tier serve` makes of whole outputs what `vllm launch render` makes of them, over HTTP.

Each case that differs on purpose is in `DELIBERATE` with its reason, and must really differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.support.corpus import parser_cases

CASES = {case["id"].partition("/")[2]: case for case in parser_cases("hermes_qwen3")}

DELIBERATE = {
    "closing_tag_in_value": "vLLM ends the call at the literal tag inside a JSON string and loses the call",
    "truncated_mid_arguments": "vLLM's streams send the cut call and its whole mode the raw text; ours agree",
}

TEXTS = [
    "Hello, world",
    " leading and trailing \n",
    "日本語 — Привет 👩‍👩‍👧‍👦 e\u0301\u200b",
    "<|im_start|>user\nhi<|im_end|>",
    "<think>\n\n</think>\n\nplain",
    "a" * 400,
]


@pytest.fixture(scope="module")
def tokenizer(qwen3_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))


def logprobs(token_ids: list[int]) -> dict[str, Any]:
    """What an engine reports with `logprobs: 1`, in invented numbers; the other candidate is the next ID."""
    content = []
    for position, token in enumerate(token_ids):
        sampled = {"token_id": token, "logprob": -0.25 * (position % 7), "rank": 1 + position % 3}
        other = {"token_id": token + 1, "logprob": -9999.0, "rank": 2 + position % 3}
        content.append({**sampled, "top_logprobs": [sampled, other]})
    return {"content": content}


def generate_reply(prompt: list[int], output: list[int], **choice: Any) -> dict[str, Any]:
    return {
        "request_id": "generate-tokens-chatcmpl-1",
        "model": "qwen3",
        "created": 1_700_000_000,
        "prompt_token_ids": prompt,
        "choices": [{"index": 0, "token_ids": output, "finish_reason": "stop", "stop_reason": None} | choice],
    }


def chat_body(case: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    tail = case["prompt_tail"] or "<|im_start|>assistant\n"
    prompt = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n" + tail, add_special_tokens=False).ids
    output = tokenizer.encode(case["output_text"], add_special_tokens=False).ids
    request: dict[str, Any] = {"model": "qwen3", "messages": [{"role": "user", "content": "hi"}]}
    for field in ("tools", "tool_choice", "chat_template_kwargs"):
        if case.get(field) is not None and (field != "tool_choice" or case["tools"]):
            request[field] = case[field]
    return {
        "model": "qwen3",
        "generate_response": generate_reply(prompt, output),
        "prompt_tokens": len(prompt),
        "prompt_token_ids": prompt,
        "chat_request": request,
    }


def derender(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def arguments(text: str) -> Any:
    """The value, where there is one: vLLM's whole mode writes the JSON anew, ours keeps the model's own
    text, as streams of both do.
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    """What a client reads. Tool-call IDs are random on the one side and derived on the other."""
    [choice] = answer["choices"]
    message = choice["message"]
    functions = [call["function"] for call in message.get("tool_calls") or []]
    calls = [(function["name"], arguments(function["arguments"])) for function in functions]
    finish = choice["finish_reason"]
    if calls and finish == "stop":
        # vLLM's whole derender passes the engine's "stop" on; its streams, and ours in both modes, say what
        # an OpenAI client expects after a call.
        finish = "tool_calls"
    usage = answer["usage"]
    return {
        "role": message["role"],
        "reasoning": message.get("reasoning"),
        "content": message["content"],
        "calls": calls,
        "finish": finish,
        "usage": [usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")],
    }


@pytest.mark.parametrize("name", CASES)
def test_chat_corpus(name: str, tokenizer: Tokenizer, peer: httpx.Client, ours: httpx.Client) -> None:
    body = chat_body(CASES[name], tokenizer)
    theirs = shown(derender(peer, "/v1/chat/completions/derender", body))
    mine = shown(derender(ours, "/v1/chat/completions/derender", body))
    if name in DELIBERATE:
        assert mine != theirs, f"equal now, so not to be listed: {DELIBERATE[name]}"
    else:
        assert mine == theirs


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_completions_with_logprobs(
    text: str, tokenizer: Tokenizer, peer: httpx.Client, ours: httpx.Client
) -> None:
    output = tokenizer.encode(text, add_special_tokens=False).ids
    reply = generate_reply([9906], output, finish_reason="length", logprobs=logprobs(output))
    body = {"model": "qwen3", "generate_responses": [reply], "prompt_tokens": [1]}
    answers = [derender(client, "/v1/completions/derender", body) for client in (peer, ours)]
    theirs, mine = (answer["choices"][0] for answer in answers)
    for field in ("text", "finish_reason", "logprobs"):
        assert mine[field] == theirs[field], field


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_chat_logprobs(text: str, tokenizer: Tokenizer, peer: httpx.Client, ours: httpx.Client) -> None:
    output = tokenizer.encode(text, add_special_tokens=False).ids
    request = {
        "model": "qwen3",
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    prompt = tokenizer.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n", add_special_tokens=False).ids
    body = {
        "model": "qwen3",
        "generate_response": generate_reply(
            prompt, output, finish_reason="length", logprobs=logprobs(output)
        ),
        "prompt_token_ids": prompt,
        "chat_request": request,
    }
    answers = [derender(client, "/v1/chat/completions/derender", body) for client in (peer, ours)]
    theirs, mine = (answer["choices"][0]["logprobs"] for answer in answers)
    assert mine == theirs
