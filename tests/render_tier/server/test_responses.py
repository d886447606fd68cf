"""The Responses endpoints over HTTP: what a client sees, and that no body makes the server fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.protocol.errors import ApiError
from render_tier.protocol.generate import GenerateRequest
from render_tier.protocol.response_stream import ResponseStream
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.server.service import Service
from tests.support.odd_bodies import JSON, MANY, SCALAR, body
from tests.support.render_app import QWEN3, load_service, settings_for
from tests.support.session_client import served

RENDER, DERENDER = "/v1/responses/render", "/v1/responses/derender"
CHAT = "/v1/chat/completions/render"
KINDS = ("message", "function_call", "function_call_output", "reasoning", "custom_tool_call", "x")
ITEM = st.dictionaries(
    st.sampled_from(
        [
            *("type", "role", "content", "id", "status", "call_id", "name", "arguments", "output", "summary"),
            *("tool_calls", "reasoning"),
        ]
    ),
    JSON | st.sampled_from(KINDS),
    max_size=6,
)
PART = st.dictionaries(
    st.sampled_from(["type", "text", "refusal"]), SCALAR | st.sampled_from(["input_text", "output_text"])
)
MESSAGE = st.fixed_dictionaries(
    {"type": st.just("message"), "role": st.sampled_from(["user", "assistant", "developer", "system"])},
    optional={
        "content": st.lists(PART, max_size=2) | SCALAR,
        "status": SCALAR,
        "id": SCALAR,
        "tool_calls": JSON,
    },
)
TOOL = st.dictionaries(
    st.sampled_from(["type", "name", "parameters", "strict", "tools", "format", "description"]),
    JSON | st.sampled_from(["function", "custom", "namespace", "web_search"]),
    max_size=5,
)
ITEMS = st.lists(ITEM | MESSAGE, max_size=3) | SCALAR
REQUEST = body(ResponsesRequest, {"input": ITEMS, "tools": st.lists(TOOL, max_size=2)})


@MANY
@given(REQUEST)
def test_no_request_is_a_server_error(answer: Any, value: Any) -> None:
    reply = answer(RENDER, value)
    if not isinstance(reply, ApiError):
        generate = msgspec.convert(reply, GenerateRequest)
        assert generate.token_ids
        assert generate.sampling_params.max_tokens is not None
        # What can be rendered can be answered.
        choice = {"index": 0, "token_ids": [1], "finish_reason": "stop"}
        whole = {"request_id": "r", "choices": [choice]}
        response = answer(
            DERENDER, {"responses_request": value, "generate_response": whole, "prompt_token_ids": [1]}
        )
        assert response["object"] == "response"


CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize("more", [[], [CALL_ITEM]], ids=["alone", "a call follows"])
@pytest.mark.parametrize("value", [7, [7], "x", {"a": 1}, [{"function": 7}]], ids=str)
@pytest.mark.parametrize("field", ["tool_calls", "reasoning", "reasoning_content", "tool_call_id", "name"])
@pytest.mark.parametrize("role", ["assistant", "user", "developer"])
def test_nothing_of_a_message_is_taken_that_is_not_checked(
    answer: Any, role: str, field: str, value: Any, more: list[Any]
) -> None:
    content: Any = [] if role == "assistant" else "hi"
    message = {"role": role, "content": content}
    after = [*more, {"role": "user", "content": "hi"}]
    plain = answer(RENDER, {"request_id": "r", "input": [message, *after]})
    given = answer(RENDER, {"request_id": "r", "input": [{**message, field: value}, *after]})
    assert not isinstance(plain, ApiError)
    assert given["token_ids"] == plain["token_ids"]


async def test_the_prompt_is_that_of_the_same_chat(client: httpx.AsyncClient) -> None:
    asked = {
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Hi"}],
        "max_output_tokens": 5,
        "request_id": "resp_1",
    }
    response = await client.post(RENDER, json=asked, headers={"x-request-id": "ignored"})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chat = await client.post(CHAT, json={"messages": messages, "max_tokens": 5})
    ours, theirs = response.json(), chat.json()
    assert ours["token_ids"] == theirs["token_ids"]
    assert ours["sampling_params"] == theirs["sampling_params"]
    assert (ours["request_id"], ours["reasoning_ended"]) == ("resp_1", None)
    assert response.headers["x-render-fingerprint"] == chat.headers["x-render-fingerprint"]


async def test_ids_are_made_for_requests_that_have_none(client: httpx.AsyncClient) -> None:
    both = [(await client.post(RENDER, json={"input": "Hi"})).json()["request_id"] for _ in range(2)]
    assert all(name.startswith("resp_") for name in both)
    assert both[0] != both[1]


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"previous_response_id": "resp_1"}, "invalid_request_error", "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "BadRequestError", "prompt"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "BadRequestError", "input"),
        ({"tool_choice": "required"}, "BadRequestError", "tool_choice"),
        ({"input": None}, "Bad Request", "body.input"),
    ],
)
async def test_what_is_wrong_is_named(
    client: httpx.AsyncClient, fields: dict[str, Any], kind: str, param: str
) -> None:
    response = await client.post(RENDER, json={"input": "Hi", **fields})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, kind, param)


async def test_a_format_is_joined_with_calls_in_the_family_s_own_form(client: httpx.AsyncClient) -> None:
    tool = {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object"}}
    text = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    response = await client.post(RENDER, json={"input": "Hi", "tools": [tool], "text": text})
    constraint = response.json()["sampling_params"]["structured_outputs"]
    assert "json" not in constraint
    assert "<tool_call>" in constraint["structural_tag"]
    assert '"or"' in constraint["structural_tag"]


async def test_a_session_answers_with_the_events_of_single_calls(
    qwen3_dir: Path, qwen3_service: Service
) -> None:
    request = {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {}}]}
    text = '<think>\nHm.\n</think>\n\nSure.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ids = list(qwen3_service.assets.tokenizer.ids(text, add_special_tokens=False))
    opening = {
        "endpoint": "responses",
        "request_id": "resp_1",
        "created": 5,
        "request": request,
        "prompt_token_ids": [1, 2, 3],
    }
    values = settings_for(qwen3_dir, **QWEN3, session_snapshot_tokens=4)
    service = load_service(values, qwen3_service.assets)
    async with served(values, service) as tier, tier.connect() as session:
        reader, state = ResponseStream(), None
        for number, token in enumerate(ids):
            finish = "stop" if number == len(ids) - 1 else None
            choice = {"index": 0, "token_ids": [token], "finish_reason": finish}
            frame: dict[str, Any] = {"stream": 1, "chunk": {"choices": [choice], "position": number}}
            if number == 0:
                frame["open"] = opening
            [answer] = await session.ask(frame)
            chunk = {"request_id": "resp_1", "created": 5, "choices": [choice], "position": number}
            body = {
                "stream": True,
                "generate_chunk": chunk,
                "stream_state": state,
                "responses_request": request,
                "prompt_token_ids": [1, 2, 3],
            }
            async with tier.http.post(f"{tier.url}{DERENDER}", json=body) as call:
                single = await call.json()
            state = single["stream_state"]
            assert answer["events"] == single["events"]
            if "stream_state" in answer:
                assert answer["stream_state"] == state
            for event in answer["events"]:
                reader.add(json.dumps(event).encode())
        assert reader.ended
        assert [item["type"] for item in reader.output] == ["reasoning", "message", "function_call"]
