"""Which messages are taken: the verdicts of vLLM 0.32's request model, one message each."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.conversation import to_conversation

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(*calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def call(**changes: Any) -> dict[str, Any]:
    """A tool call with parts changed, or left out (None)."""
    return {key: value for key, value in {**CALL, **changes}.items() if value is not None}


TAKEN: list[dict[str, Any]] = [
    user("x", extra=1),
    {"role": "user"},
    user([]),
    user([{"type": "text", "text": "a", "cache_control": {}}]),
    user([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]),
    user([{"type": "text", "text": "a"}, {"type": "text", "text": None}]),
    user("x", name="n", task="t"),
    {"role": "assistant"},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": "", "tool_calls": None},
    assistant(),
    assistant(CALL, reasoning="r"),
    assistant(CALL, reasoning_content="r"),
    assistant(call(function={"name": "f", "arguments": "{}", "x": 1}, index=0)),
    {"role": "assistant", "content": "", "reasoning": 5},
    {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
    {"role": "assistant", "refusal": "no"},
    {"role": "tool", "content": "x"},
    {"role": "tool", "content": "x", "tool_call_id": "c"},
    {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "c"},
    {"role": "tool", "content": [{"type": "tool_reference", "name": "a"}]},
    {"role": "tool", "tool_call_id": "c"},
    {"role": "function", "name": "f", "content": "x"},
    {"role": "developer", "content": "x", "tools": [{"type": "function", "function": {"name": "a"}}]},
    {"role": "weird", "content": "x", "tool_calls": [CALL], "reasoning": "r"},
    {"role": "weird", "content": ["a", "b"]},
    {"role": "", "content": "x"},
    {"role": "system", "content": [{"type": "text", "text": "a"}]},
]
REFUSED: list[Any] = [
    user(None),
    user(5),
    user({"type": "text", "text": "a"}),
    user(["a", "b"]),
    user([5]),
    user([{"type": "text"}]),
    user([{"type": "text", "text": 5}]),
    user([{"type": "text", "text": None}]),
    user([{"text": "a"}]),
    user([{"type": "nope", "x": "a"}]),
    user([{"type": "input_text", "text": "a"}]),
    user([{"type": "image_url", "image_url": {"url": "u"}}]),
    user([{"image_url": "u"}]),
    user("x", name=5),
    {"role": "assistant", "content": "", "tool_calls": 5},
    {"role": "assistant", "content": "", "tool_calls": "abc"},
    {"role": "assistant", "content": "", "tool_calls": {"a": 1}},
    assistant(5),
    assistant({"id": "c"}),
    assistant(call(id=None)),
    assistant(call(type=None)),
    assistant(call(type="weird")),
    assistant(call(function={"name": "f"})),
    assistant(call(function={"name": "f", "arguments": {"a": 1}})),
    assistant({"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}),
    {"role": "tool", "content": "x", "tool_call_id": 5},
    {"role": "tool", "content": {"a": 1}, "tool_call_id": "c"},
    {"role": "weird", "content": None},
    {"role": "weird", "content": "x", "tool_calls": [5]},
    {"role": 5, "content": "x"},
    {"role": None, "content": "x"},
    {"content": "x"},
    {},
    "text",
    5,
    None,
    [],
]


def take(message: Any) -> ChatCompletionRequest:
    request = ChatCompletionRequest.parse({"messages": [message]})
    to_conversation(request.messages, "string", model="m", strict_history=True, warnings=[])
    return request


@pytest.mark.parametrize("message", TAKEN, ids=str)
def test_taken(message: dict[str, Any]) -> None:
    before = copy.deepcopy(message)
    take(message)
    assert message == before


@pytest.mark.parametrize("message", REFUSED, ids=str)
def test_refused(message: Any) -> None:
    with pytest.raises(BadRequest):
        take(message)


def test_fault_is_located() -> None:
    with pytest.raises(BadRequest) as refused:
        ChatCompletionRequest.parse({"messages": [user("a"), assistant(call(function={"name": "f"}))]})
    assert refused.value.type == "Bad Request"
    assert refused.value.param == "body.messages.1.tool_calls.0.function.arguments"


@pytest.mark.parametrize(
    ("part", "lack"),
    [
        ({"type": "image_pil", "image_pil": "x"}, "is of type 'image_pil'"),
        ({"type": "text", "content": "x"}, "is of type 'text' and has no 'text'"),
        ({"type": "image_url"}, "is of type 'image_url' and has no 'image_url'"),
        ({"text": "x"}, "has no 'type'"),
        ("x", "is a string and has no 'type'"),
    ],
)
def test_a_list_without_a_valid_part_says_what_the_first_one_lacks(part: Any, lack: str) -> None:
    with pytest.raises(BadRequest, match=f"messages.0: .*: the first {lack}$"):
        ChatCompletionRequest.parse({"messages": [user([part])]})
