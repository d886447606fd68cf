"""A strict reader of Responses streams: the rules that OpenAI's clients rely on, as assertions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

Json = dict[str, Any]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MADE_UP = ("id", "call_id")


def read(events: Iterable[Json]) -> Json:
    """The response that a whole stream ends with. Every event is one of the official client's, in its place,
    and says of its item what the others say."""
    kinds: list[str] = []
    opened: dict[int, Json] = {}
    done: dict[int, Json] = {}
    text = ""
    event: Json = {}
    for number, event in enumerate(events):
        kind = event["type"]
        assert EVENT.validate_python(event).type == kind
        assert event["sequence_number"] == number
        kinds.append(kind)
        if kind == "response.output_item.added":
            assert event["output_index"] == len(opened)
            assert opened.keys() == done.keys()
            opened[event["output_index"]] = event["item"]
            text = ""
        elif kind.endswith(".delta"):
            assert event["delta"] or event["logprobs"]
            text += event["delta"]
            assert event["item_id"] == opened[event["output_index"]]["id"]
        elif kind == "response.output_item.done":
            item = done[event["output_index"]] = event["item"]
            first = opened[event["output_index"]]
            assert (item["id"], item["type"]) == (first["id"], first["type"])
            assert text == text_of(item)
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete", "response.failed")
    assert opened.keys() == done.keys()
    response: Json = event["response"]
    assert response["output"] == [done[index] for index in sorted(done)]
    return response


def text_of(item: Json) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return str(item["input"] if item["type"] == "custom_tool_call" else item["content"][0]["text"])


def without_ids(output: list[Json]) -> list[Json]:
    """Items as two answers to the same request share them."""
    return [{name: value for name, value in item.items() if name not in MADE_UP} for item in output]
