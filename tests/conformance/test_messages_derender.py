"""Every recorded output as a message: what the chat answer says, in blocks; the same for every chunking, on
any worker, and in a session."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from render_tier.derendering import Derenderer
from tests.conformance.test_derender_paths import CASES, Recorded, fleet, say, session
from tests.families.tokenization import tokenizer_of
from tests.support.messages_stream import read

REQUEST_ID = "msg_recorded"
CHOICES = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}


def as_messages(chat: dict[str, Any]) -> dict[str, Any]:
    """The same request in Anthropic's words."""
    request: dict[str, Any] = {"model": "recorded", "max_tokens": 9, "messages": chat["messages"]}
    if "chat_template_kwargs" in chat:
        request["chat_template_kwargs"] = chat["chat_template_kwargs"]
    if "tools" in chat:
        functions = [tool["function"] for tool in chat["tools"]]
        request["tools"] = [
            {"name": function["name"], "input_schema": function.get("parameters") or {}}
            for function in functions
        ]
    choice = chat.get("tool_choice")
    if isinstance(choice, dict):
        request["tool_choice"] = {"type": "tool", "name": choice["function"]["name"]}
    elif choice is not None:
        request["tool_choice"] = CHOICES[choice]
    return request


class AsMessages:
    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.request = as_messages(recorded.chat)

    def whole(self, derenderer: Derenderer) -> Any:
        recorded = self.recorded
        choice = {"index": 0, "token_ids": recorded.ids, "finish_reason": recorded.finish}
        body = {
            "generate_response": {"request_id": REQUEST_ID, "choices": [choice]},
            "messages_request": self.request,
            "prompt_token_ids": recorded.prompt,
        }
        return json.loads(derenderer.messages(json.dumps(body).encode()))

    def call(self, derenderer: Derenderer, ids: list[int], finish: str | None, state: Any) -> Any:
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish}
        body = {
            "stream": True,
            "generate_chunk": {"request_id": REQUEST_ID, "choices": [choice]},
            "stream_state": state,
            "messages_request": self.request,
            "prompt_token_ids": self.recorded.prompt,
        }
        return json.loads(derenderer.messages(json.dumps(body).encode()))


def said_by(message: dict[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
    blocks = message["content"]
    return (
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        [(block["name"], block["arguments"]) for block in blocks if block["type"] == "tool_use"],
    )


def input_of(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_messages_say_what_chat_says(case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(case)
    names = case["format"]
    servers = fleet(tokenizer, names["reasoning_parser"], names["tool_parser"])
    recorded = Recorded(
        case, tokenizer.encode(case["output_text"]), tokenizer.encode(case.get("prompt_tail") or "") or [0]
    )
    messages = AsMessages(recorded)
    rng = random.Random(case["id"])
    state: Any = None
    events: list[Any] = []
    live = session(servers.cached)
    opening = {
        "endpoint": "messages",
        "request_id": REQUEST_ID,
        "request": messages.request,
        "prompt_token_ids": recorded.prompt,
    }
    for number, (ids, finish) in enumerate(recorded.pieces(rng)):
        answer, *others = [
            messages.call(way, ids, finish, state)
            for way in (servers.cached, servers.uncached, rng.choice(servers.workers))
        ]
        assert all(other == answer for other in others)
        frame: dict[str, Any] = {"stream": 1} | ({} if number else {"open": opening})
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish}
        [said] = say(live, {**frame, "chunk": {"choices": [choice]}})
        assert (said["events"], said["derender"]) == (answer["events"], answer["derender"])
        state = answer["stream_state"]
        events += answer["events"]
    streamed, whole = read(events), messages.whole(servers.cached)
    chat = recorded.whole(servers.cached)["choices"][0]
    message = chat["message"]
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])
    ]
    assert said_by(streamed) == (message["reasoning"] or "", message["content"] or "", calls)
    assert [block["type"] for block in streamed["content"]] == [block["type"] for block in whole["content"]]
    for block, other in zip(streamed["content"], whole["content"], strict=True):
        if block["type"] != "tool_use":
            assert block == other
            continue
        assert (block["id"], block["name"]) == (other["id"], other["name"])
        expected = input_of(block["arguments"])
        assert other["input"] == expected or expected is None
    for name in ("id", "model", "stop_reason", "stop_sequence", "usage"):
        assert streamed[name] == whole[name]
    assert whole["usage"]["output_tokens"] == len(recorded.ids)
    if chat["finish_reason"] == "length":
        assert whole["stop_reason"] == "max_tokens"
    elif chat["finish_reason"] in ("stop", "tool_calls"):
        assert whole["stop_reason"] == ("tool_use" if calls else "end_turn")
