"""A strict reader of Messages streams: the rules of Anthropic's API that clients rely on, as assertions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
"""Type of block -> the deltas that it may have and where their text is."""


def read(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client builds of a whole stream; the arguments of calls stay text, under
    `arguments`."""
    message: dict[str, Any] | None = None
    open_block: dict[str, Any] | None = None
    ended = stopped = False
    for event in events:
        assert not stopped, "nothing comes after message_stop"
        kind = event["type"]
        if kind == "ping":
            continue
        if kind == "message_start":
            assert message is None
            message = dict(event["message"])
            assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
            assert message["stop_reason"] is None
            assert message["stop_sequence"] is None
            message["content"] = []
            continue
        assert message is not None, "message_start comes first"
        if kind == "content_block_start":
            assert open_block is None
            assert not ended
            assert event["index"] == len(message["content"]), "indexes are contiguous"
            open_block = _begun(event["content_block"])
            message["content"].append(open_block)
        elif kind == "content_block_delta":
            assert open_block is not None
            assert event["index"] == len(message["content"]) - 1
            _add(open_block, event["delta"])
        elif kind == "content_block_stop":
            assert open_block is not None
            assert event["index"] == len(message["content"]) - 1
            assert open_block["type"] != "thinking" or open_block["signature"]
            open_block = None
        elif kind == "message_delta":
            assert open_block is None, "every block is closed before the end"
            assert not ended
            ended = True
            message |= event["delta"]
            message["usage"] = {**message["usage"], **event["usage"]}
        else:
            assert kind == "message_stop", kind
            assert ended
            stopped = True
    assert stopped
    assert message is not None
    return message


def _begun(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "tool_use":
        assert block["input"] == {}
        assert block["id"]
        assert block["name"]
        return {"type": "tool_use", "id": block["id"], "name": block["name"], "arguments": ""}
    fields = {"text": ("text",), "thinking": ("thinking", "signature")}[block["type"]]
    assert [block[name] for name in fields] == [""] * len(fields)
    return dict(block)


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    field = DELTAS[block["type"]][delta["type"]]
    assert delta[field], "no delta is empty"
    name = "arguments" if field == "partial_json" else field
    if field == "signature":
        assert not block["signature"], "one signature for each block of thinking"
    block[name] += delta[field]


def with_input(message: dict[str, Any]) -> dict[str, Any]:
    """A message of `read` with the arguments of its calls as `input`: whole JSON, or none."""
    blocks = []
    for block in message["content"]:
        if "arguments" in block:
            block = {**block}
            block["input"] = json.loads(block.pop("arguments") or "{}")
        blocks.append(block)
    return {**message, "content": blocks}
