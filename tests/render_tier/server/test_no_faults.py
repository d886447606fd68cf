"""No body makes the server fail: every answer is a success or an error of the contract."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.protocol.anthropic import MessagesRequest
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import ApiError
from render_tier.protocol.generate import GenerateRequest
from tests.support.odd_bodies import JSON, MANY, SCALAR, body

MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "developer", "system", "x"]) | SCALAR,
        "content": st.text(max_size=8) | st.lists(JSON, max_size=2) | SCALAR,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"id": st.just("c"), "type": st.sampled_from(["function", "custom"])},
                optional={"function": JSON, "custom": JSON},
            )
            | JSON,
            max_size=2,
        )
        | SCALAR,
        "reasoning": SCALAR,
        "name": SCALAR,
        "tool_call_id": SCALAR,
        "tools": JSON,
    },
)
MESSAGES = st.lists(MESSAGE, max_size=3) | JSON


CHAT = body(ChatCompletionRequest, {"messages": MESSAGES})
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "thinking", "tool_addition", "x"])},
    optional={
        "text": st.text(max_size=5) | SCALAR,
        "thinking": SCALAR,
        "source": JSON,
        "input": JSON,
        "name": SCALAR,
        "id": SCALAR,
        "tool_use_id": SCALAR,
        "content": JSON
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": SCALAR}), max_size=2),
        "tool": JSON,
    },
)
ANTHROPIC = body(
    MessagesRequest,
    {
        "model": st.just("qwen3"),
        "max_tokens": st.integers(1, 50),
        "messages": st.lists(
            st.fixed_dictionaries(
                {
                    "role": st.sampled_from(["user", "assistant", "system"]),
                    "content": st.text(max_size=5) | st.lists(BLOCK, max_size=3),
                }
            )
            | JSON,
            max_size=3,
        ),
    },
)
COMPLETION = body(CompletionRequest, {"prompt": st.text(max_size=5) | st.lists(SCALAR, max_size=3) | JSON})
TOKENIZE = st.dictionaries(
    st.sampled_from(["prompt", "messages", "tools", "model", "chat_template_kwargs"]), JSON
)
DETOKENIZE = st.fixed_dictionaries({"tokens": st.lists(SCALAR, max_size=3) | JSON})
DERENDER = st.fixed_dictionaries(
    {},
    optional={
        "stream": SCALAR,
        "generate_response": st.fixed_dictionaries(
            {
                "request_id": SCALAR,
                "choices": st.lists(
                    st.dictionaries(st.sampled_from(["index", "token_ids"]), JSON), max_size=2
                ),
            }
        )
        | JSON,
        "generate_responses": JSON,
        "generate_chunk": JSON,
        "stream_state": JSON,
        "prompt_token_ids": JSON,
        "chat_request": CHAT | JSON,
        "messages_request": ANTHROPIC | JSON,
        "context": SCALAR,
    },
)


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": {"a": value}}
    return value


FUNCTION = {"name": "f", "description": "d"}
DEEP: dict[str, Any] = {
    "tools": lambda v: {"tools": [{"type": "function", "function": {**FUNCTION, "parameters": v}}]},
    "required tool": lambda v: {
        "tools": [{"type": "function", "function": {**FUNCTION, "parameters": v}}],
        "tool_choice": "required",
    },
    "template": lambda v: {"chat_template_kwargs": {"a": v}},
    "schema": lambda v: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": v}}
    },
    "structured": lambda v: {"structured_outputs": {"json": v}},
    "transfer": lambda v: {"kv_transfer_params": {"a": v}},
    "anthropic tools": lambda v: {"tools": [{"name": "f", "input_schema": v}]},
    "anthropic metadata": lambda v: {"metadata": v},
    "responses tools": lambda v: {"tools": [{"type": "function", "name": "f", "parameters": v}]},
    "text format": lambda v: {"text": {"format": {"type": "json_schema", "name": "s", "schema": v}}},
    "call": lambda v: {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": json.dumps(v)},
                    }
                ],
            },
        ]
    },
}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "responses"])
def test_no_depth_is_a_server_error(answer: Any, path: str, name: str) -> None:
    base = {
        "model": "qwen3",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "input": "hi",
        "prompt": "hi",
    }
    for levels in (20, 60, 90, *range(94, 101), 200, 300):
        answer(f"/v1/{path}/render", {**base, **DEEP[name](nested(levels))})
        answer("/tokenize", {"messages": base["messages"], **DEEP[name](nested(levels))})


@MANY
@given(CHAT)
def test_chat(answer: Any, value: Any) -> None:
    reply = answer("/v1/chat/completions/render", value)
    if not isinstance(reply, ApiError):
        generate = msgspec.convert(reply, GenerateRequest)
        assert generate.token_ids
        assert generate.sampling_params.max_tokens is not None


@MANY
@given(ANTHROPIC)
def test_messages(answer: Any, value: Any) -> None:
    reply = answer("/v1/messages/render", value)
    counted = answer("/v1/messages/count_tokens", value)
    if not isinstance(reply, ApiError):
        assert msgspec.convert(reply, GenerateRequest).token_ids
        assert counted["input_tokens"] == len(reply["token_ids"])


@MANY
@given(COMPLETION)
def test_completions(answer: Any, value: Any) -> None:
    reply = answer("/v1/completions/render", value)
    if not isinstance(reply, ApiError):
        for one in reply:
            assert msgspec.convert(one, GenerateRequest).token_ids


@MANY
@given(TOKENIZE)
def test_tokenize(answer: Any, value: Any) -> None:
    answer("/tokenize", value)


@MANY
@given(DETOKENIZE)
def test_detokenize(answer: Any, value: Any) -> None:
    answer("/detokenize", value)


@MANY
@given(DERENDER)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/derender", "/v1/completions/derender", "/v1/messages/derender"]
)
def test_derender(answer: Any, path: str, value: Any) -> None:
    answer(path, value)


@given(st.text(max_size=40), st.lists(st.text(max_size=10), max_size=3))
def test_tokenize_and_detokenize_are_inverse(answer: Any, text: str, more: list[str]) -> None:
    whole = "".join([text, *more])
    reply = answer("/tokenize", {"prompt": whole, "return_token_strs": True})
    if isinstance(reply, ApiError):
        assert any(0xD800 <= ord(character) < 0xE000 for character in whole)
        return
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert answer("/detokenize", {"tokens": reply["tokens"]})["prompt"] == unicodedata.normalize("NFC", whole)
