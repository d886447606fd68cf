"""No value in a body makes derender fail otherwise than with its own error."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from render_tier.protocol.errors import ApiError
from tests.render_tier.derendering.conftest import TOOLS, Client
from tests.render_tier.derendering.test_chat import logprobs

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    1 << 31,
    1 << 53,
    1 << 63,
    1 << 64,
    1 << 70,
    -(1 << 70),
    1.5,
    1e308,
    "",
    "x",
    "\ud83d\ude00",
    "\x00",
    [],
    [[]],
    [-1],
    [1 << 70],
    {},
    {"a": 1},
    {"index": 1},
]


def chat_whole(who: Client) -> dict[str, Any]:
    ids = who.encode("<think>a</think>b")
    return {
        "model": "qwen3",
        "generate_response": {
            "request_id": "x",
            "created": 1,
            "choices": [
                {
                    "index": 0,
                    "token_ids": ids,
                    "finish_reason": "stop",
                    "stop_reason": None,
                    "logprobs": {"content": logprobs(ids)},
                }
            ],
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
            "prompt_token_ids": [1],
            "kv_transfer_params": {"a": 1},
            "metrics": {"queue_time_ms": 1},
        },
        "prompt_tokens": 3,
        "prompt_token_ids": who.prompt,
        "chat_request": {
            **who.request,
            "tools": TOOLS,
            "stop": ["z"],
            "min_tokens": 1,
            "logprobs": True,
            "return_token_ids": True,
            "include_reasoning": False,
            "chat_template_kwargs": {"enable_thinking": True},
            "tool_choice": "auto",
        },
    }


def chat_chunk(who: Client) -> dict[str, Any]:
    body = chat_whole(who)
    body["stream"] = True
    body["generate_chunk"] = body.pop("generate_response")
    first = json.loads(who.derenderer.chat(json.dumps(body).encode()))
    body["generate_chunk"]["choices"][0]["finish_reason"] = None
    body["stream_state"] = first["stream_state"]
    return body


def peer_chunk(who: Client) -> dict[str, Any]:
    body = chat_chunk(who)
    body["stream_state"] = {
        "prev_tokens": ["a"],
        "prefix_offset": 0,
        "read_offset": 0,
        "role_sent": True,
        "logprob_text_offset": 1,
        "logprob_context_token_ids": [1],
        "output_token_ids": [1, 2],
        "output_chunk_lens": [1, 1],
        "last_tool_call_ids": ["a"],
    }
    return body


def completion_whole(who: Client) -> dict[str, Any]:
    chat = chat_whole(who)
    return {
        "model": "qwen3",
        "generate_responses": [chat["generate_response"]] * 2,
        "prompt_tokens": [1, 2],
        "prompt_token_ids": [[1], None],
        "completion_request": {
            "prompt": "x",
            "stop": "z",
            "return_token_ids": True,
            "skip_special_tokens": False,
        },
    }


def completion_chunk(who: Client) -> dict[str, Any]:
    body = chat_chunk(who)
    body.pop("chat_request")
    del body["stream_state"]
    return {**body, "completion_request": {"prompt": "x", "stop": "z"}}


def responses_whole(who: Client) -> dict[str, Any]:
    body = chat_whole(who)
    chat = body.pop("chat_request")
    asked = {
        "input": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "c"}],
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        **{name: chat[name] for name in ("stop", "include_reasoning", "chat_template_kwargs", "tool_choice")},
    }
    return {**body, "responses_request": asked}


def responses_chunk(who: Client) -> dict[str, Any]:
    body = responses_whole(who)
    body["stream"] = True
    body["generate_chunk"] = body.pop("generate_response")
    body["generate_chunk"]["choices"][0]["finish_reason"] = None
    body["stream_state"] = json.loads(who.derenderer.responses(json.dumps(body).encode()))["stream_state"]
    return body


def messages_whole(who: Client) -> dict[str, Any]:
    body = chat_whole(who)
    body.pop("chat_request")
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]}
    asked = {
        "model": "qwen3",
        "max_tokens": 2000,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [result]},
            {
                "role": "system",
                "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}],
            },
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "auto", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "stop_sequences": ["z"],
        "chat_template_kwargs": {"enable_thinking": True},
    }
    return {**body, "messages_request": asked}


def messages_chunk(who: Client) -> dict[str, Any]:
    body = messages_whole(who)
    body["stream"] = True
    body["generate_chunk"] = body.pop("generate_response")
    body["generate_chunk"]["choices"][0]["finish_reason"] = None
    body["stream_state"] = json.loads(who.derenderer.messages(json.dumps(body).encode()))["stream_state"]
    return body


CALLS = {
    "chat_request": "chat",
    "completion_request": "completions",
    "messages_request": "messages",
    "responses_request": "responses",
}


def call_for(who: Client, body: dict[str, Any]) -> Callable[[bytes], bytes]:
    [name] = CALLS.keys() & body.keys()
    call: Callable[[bytes], bytes] = getattr(who.derenderer, CALLS[name])
    return call


MAKERS = (
    *(chat_whole, chat_chunk, peer_chunk),
    *(completion_whole, completion_chunk),
    *(messages_whole, messages_chunk),
    *(responses_whole, responses_chunk),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    )
    for key, item in inner:
        yield from places(item, (*path, key))


def replaced(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    body = copy.deepcopy(body)
    holder: Any = body
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return body


def status_of(call: Callable[[bytes], bytes], body: bytes) -> int:
    """The HTTP status of the answer; 500 for an error that is not derender's own."""
    try:
        json.loads(call(body))
    except ApiError as error:
        return error.status
    except Exception:
        return 500
    return 200


@pytest.mark.parametrize("make", MAKERS)
def test_every_odd_value_in_every_place(
    client: Callable[..., Client], make: Callable[[Client], dict[str, Any]]
) -> None:
    who = client()
    body = make(who)
    call = call_for(who, body)
    assert json.loads(call(json.dumps(body).encode()))
    for path in places(body):
        for value in ODD:
            sent = json.dumps(replaced(body, path, value)).encode()
            assert 200 <= status_of(call, sent) < 500, f"{path} = {value!r}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_two_odd_values_at_once(client: Callable[..., Client], data: st.DataObject) -> None:
    who = client()
    make = data.draw(st.sampled_from(MAKERS))
    body = make(who)
    call = call_for(who, body)
    for _ in range(2):
        path = data.draw(st.sampled_from(list(places(body))))
        body = replaced(body, path, data.draw(st.sampled_from(ODD)))
    assert 200 <= status_of(call, json.dumps(body).encode()) < 500
