"""Completions derender: text without parsers, one or many prompts, whole and by the chunk."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from render_tier.protocol.errors import BadRequest
from tests.render_tier.derendering.conftest import EOS, Client
from tests.render_tier.derendering.test_chat import logprobs

Make = Callable[..., Client]


def whole(who: Client, outputs: list[list[int]], request: Any = None, **more: Any) -> Any:
    responses = [
        {
            "request_id": f"cmpl-{n}",
            "choices": [
                {
                    "index": 0,
                    "token_ids": ids,
                    "finish_reason": "stop",
                    "logprobs": {"content": logprobs(ids)},
                }
            ],
        }
        for n, ids in enumerate(outputs)
    ]
    body = {"generate_responses": responses, "completion_request": request, **more}
    return json.loads(who.derenderer.completions(json.dumps(body).encode()))


def stream(who: Client, pieces: list[list[int]], request: Any = None, finish: str = "stop") -> list[Any]:
    answers: list[Any] = []
    state = None
    for number, ids in enumerate(pieces):
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": logprobs(ids)}}
        if number == len(pieces) - 1:
            choice["finish_reason"] = finish
        body = {
            "stream": True,
            "generate_chunk": {"request_id": "cmpl-0", "choices": [choice]},
            "stream_state": state,
            "completion_request": request,
        }
        answers.append(json.loads(who.derenderer.completions(json.dumps(body).encode())))
        state = answers[-1]["stream_state"]
    return answers


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "request_fields",
    [
        None,
        {"prompt": "x", "skip_special_tokens": False},
        {"prompt": "x", "stop": ["two"], "return_token_ids": True},
        {"prompt": "x", "stop": ["two"], "include_stop_str_in_output": True},
    ],
)
def test_streams_give_what_whole_gives(client: Make, size: int, request_fields: Any) -> None:
    who = client()
    ids = [*who.encode("one 𓂀 <|im_start|>two <think>three"), EOS]
    want = whole(who, [ids], request_fields)["choices"][0]
    got = [
        answer["chunk"]["choices"][0]
        for answer in stream(who, [ids[at : at + size] for at in range(0, len(ids), size)], request_fields)
    ]
    assert "".join(choice["text"] for choice in got) == want["text"]
    for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
        assert [x for choice in got for x in (choice["logprobs"] or {}).get(name, [])] == want["logprobs"][
            name
        ]
    assert [x for choice in got for x in choice["token_ids"] or []] == (want["token_ids"] or [])
    ends = [choice for choice in got if choice["finish_reason"] is not None]
    assert [(end["finish_reason"], end["stop_reason"]) for end in ends] == [
        (want["finish_reason"], want["stop_reason"])
    ]


def test_markers_are_plain_text_here(client: Make) -> None:
    who = client()
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert whole(who, [who.encode(text)])["choices"][0]["text"] == text


def test_many_prompts_have_one_running_index(client: Make) -> None:
    who = client()
    got = whole(who, [who.encode("a b"), who.encode("c")], prompt_tokens=[3, 4])
    assert got["id"] == "cmpl-0"
    assert [(choice["index"], choice["text"]) for choice in got["choices"]] == [(0, "a b"), (1, "c")]
    assert (got["usage"]["prompt_tokens"], got["usage"]["completion_tokens"]) == (7, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generate_responses": []}, "must not be empty"),
        ({"generate_responses": None}, "generate_responses"),
        ({"prompt_tokens": [1, 2]}, "parallel"),
        ({"prompt_tokens": 1}, "parallel"),
        ({"prompt_token_ids": [[1], [2]]}, "must match"),
        ({"prompt_token_ids": 5}, "prompt_token_ids"),
        ({"prompt_token_ids": [[1 << 40]]}, "out of vocabulary"),
        ({"completion_request": {"prompt": "x", "stop": [""]}}, "empty"),
        ({"completion_request": {"prompt": "x", "stop": ["a"] * 9}}, "stop"),
    ],
)
def test_wrong_bodies_are_named(client: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        whole(
            client(), [[1]], **{"request": None, **change} if "completion_request" not in change else change
        )


def test_a_chat_state_is_none_of_a_completion(client: Make) -> None:
    who = client()
    state = who.chunk([1])["stream_state"]
    body = {
        "stream": True,
        "generate_chunk": {"request_id": who.request_id, "choices": [{"token_ids": [1]}]},
        "stream_state": state,
        "completion_request": who.request | {"prompt": "x"},
        "prompt_token_ids": who.prompt,
    }
    with pytest.raises(BadRequest, match="another request"):
        who.derenderer.completions(json.dumps(body).encode())
    # Nor does the state alone open it: a completion never reads another kind's context.
    bare = {key: body[key] for key in ("stream", "generate_chunk", "stream_state")}
    with pytest.raises(BadRequest):
        who.derenderer.completions(json.dumps(bare).encode())
