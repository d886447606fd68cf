"""Responses as the client gets them: events made whole, the last one with our usage, and failures."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orchestrator.core.dialects import StreamEnd, UnreadableAnswer, dialect_of
from orchestrator.core.sse import SSEDecoder
from orchestrator.core.usage import Usage
from render_tier.protocol.errors import ApiError, Unavailable

USAGE = Usage(10, 3, 4, 1)
AS_TOLD = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 13,
}
PLACE = {"output_index": 0, "item_id": "msg_1"}
PART = {"type": "output_text", "text": None, "annotations": [], "logprobs": []}
STARTED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
ITEM = {"type": "message", "id": "msg_1", "status": "completed", "content": [PART]}
EVENTS: list[dict[str, Any]] = [
    STARTED,
    {"type": "response.output_text.delta", **PLACE, "delta": "a", "logprobs": [{"token": "a"}]},
    {"type": "response.output_text.delta", **PLACE, "delta": "é", "logprobs": []},
    {"type": "response.output_text.done", **PLACE, "text": None, "logprobs": []},
    {"type": "response.content_part.done", **PLACE, "part": PART},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
    {"type": "response.completed", "response": {"id": "resp_1", "output": None, "usage": None}},
]


def raw(event: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(event))


def numbered(events: list[dict[str, Any]]) -> list[msgspec.Raw]:
    return [raw({**event, "sequence_number": number}) for number, event in enumerate(events)]


def read(frames: bytes) -> list[Any]:
    for frame in frames.decode().removesuffix("\n\n").split("\n\n") if frames else ():
        name, data = frame.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    return [json.loads(payload) for payload in SSEDecoder(1 << 20).feed(frames)]


def end(usage: Usage | None = USAGE, **extra: Any) -> StreamEnd:
    return StreamEnd("resp_1", 5, "m", usage, extra)


def test_closing_events_get_their_text_and_the_last_one_usage() -> None:
    dialect = dialect_of("responses")
    frames = read(dialect.frames(numbered(EVENTS)[:3], None) + dialect.frames(numbered(EVENTS)[3:], None))
    assert [event["sequence_number"] for event in frames] == list(range(6))  # the last is kept back
    part = {**PART, "text": "aé", "logprobs": [{"token": "a"}]}
    assert (frames[3]["text"], frames[3]["logprobs"]) == ("aé", [{"token": "a"}])
    assert frames[4]["part"] == part
    assert frames[5]["item"] == {**ITEM, "content": [part]}
    [last] = read(dialect.end(end(pd_timing={"x": 1})))
    assert last["response"]["usage"] == AS_TOLD
    assert last["response"]["output"] == [frames[5]["item"]]
    assert last["response"]["pd_timing"] == {"x": 1}


def test_requests_do_not_share_what_they_have_said() -> None:
    dialect_of("responses").frames(numbered(EVENTS)[:3], None)
    other = dialect_of("responses")
    [done] = read(other.frames(numbered(EVENTS)[3:4], None))
    assert done["text"] == ""


def test_events_are_numbered_as_they_are_handed_on() -> None:
    dialect = dialect_of("responses")
    first, second = numbered(EVENTS)[:2], numbered(EVENTS)[1:5]  # read again from an earlier state
    frames = read(dialect.frames(first, None) + dialect.frames(second, None))
    assert [event["sequence_number"] for event in frames] == list(range(6))
    assert frames[2]["delta"] == frames[1]["delta"]


def test_a_failure_is_a_failed_response_and_an_error() -> None:
    dialect = dialect_of("responses")
    dialect.frames(numbered(EVENTS)[:6], None)
    failed, error = read(dialect.error_frames(Unavailable("no engine")))
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 6)
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "no engine"}
    assert len(failed["response"]["output"]) == 1
    assert (error["type"], error["sequence_number"], error["message"]) == ("error", 7, "no engine")
    assert error["error"]["code"] == 503


def test_a_failure_before_the_first_event_is_an_error_alone() -> None:
    [error] = read(dialect_of("responses").error_frames(ApiError("x")))
    assert (error["type"], error["sequence_number"]) == ("error", 0)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.content_part.done"},
        {"type": "response.output_item.done", "item": {"type": "message", "content": []}},
        {"type": "response.output_item.done", "item": None},
        {"delta": 5},
        [],
    ],
)
def test_what_is_no_event_is_refused(event: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        dialect_of("responses").frames([raw(event)], None)


def test_whole() -> None:
    dialect = dialect_of("responses")
    body = msgspec.json.encode(
        {"id": "x", "output": [], "usage": {"output_tokens": 3, "output_tokens_details": {}}}
    )
    counted = dialect.counted(body)
    assert (counted.completion_tokens, counted.reasoning_tokens) == (3, 0)
    whole = json.loads(dialect.whole(body, "resp_1", 5, USAGE))
    assert whole == {"id": "resp_1", "output": [], "usage": AS_TOLD, "created_at": 5}
    with pytest.raises(UnreadableAnswer):
        dialect.counted(b"{}")
