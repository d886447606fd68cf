"""What clients of each API read: frames, ends, whole answers and errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orchestrator.core.dialects import DIALECTS, StreamEnd, UnreadableAnswer, dialect_of
from orchestrator.core.sse import SSEDecoder
from orchestrator.core.usage import Usage
from render_tier.protocol.errors import ApiError, NotFound, Unavailable

USAGE = Usage(50, 7, 32, 3)
OURS = {
    "input_tokens": 18,
    "cache_read_input_tokens": 32,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 3},
}
"""`USAGE` in Anthropic's words."""


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def payloads(frames: bytes) -> list[Any]:
    return [data if data == b"[DONE]" else json.loads(data) for data in SSEDecoder(1 << 20).feed(frames)]


def end(usage: Usage | None = None, **extra: Any) -> StreamEnd:
    return StreamEnd("id-1", 1000, "m", usage, extra)


class TestOpenAI:
    def test_chunks_are_passed_on_as_they_are(self) -> None:
        assert DIALECTS["chat"].frames([msgspec.Raw(b'{"a": 1}')], None) == b'data: {"a": 1}\n\n'

    def test_counts_so_far_for_those_who_ask(self) -> None:
        [chunk] = payloads(DIALECTS["chat"].frames([raw({"a": 1, "usage": None})], USAGE))
        assert chunk == {"a": 1, "usage": USAGE.as_json()}

    def test_a_stream_ends_with_done(self) -> None:
        dialect = DIALECTS["completions"]
        assert payloads(dialect.end(end())) == [b"[DONE]"]
        last, done = payloads(dialect.end(end(USAGE, pd_timing={"x": 1})))
        assert done == b"[DONE]"
        assert (last["choices"], last["usage"], last["pd_timing"]) == ([], USAGE.as_json(), {"x": 1})

    def test_a_whole_answer_gets_our_id_time_and_usage(self) -> None:
        dialect = DIALECTS["chat"]
        body = json.dumps({"id": "x", "choices": [], "usage": {"completion_tokens": 7}}).encode()
        assert dialect.counted(body).completion_tokens == 7
        answer = json.loads(dialect.whole(body, "id-1", 1000, USAGE))
        assert answer == {"id": "id-1", "choices": [], "usage": USAGE.as_json(), "created": 1000}

    def test_an_error_ends_with_done_too(self) -> None:
        error, done = payloads(DIALECTS["chat"].error_frames(ApiError("no", status=502, type="T")))
        assert error == {"error": {"message": "no", "type": "T", "param": None, "code": 502}}
        assert done == b"[DONE]"


class TestAnthropic:
    start = raw({"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 50}}})
    text = raw({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}})
    delta = raw(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    )
    stop = raw({"type": "message_stop"})

    def test_events_have_their_type_as_name(self) -> None:
        frames = dialect_of("messages").frames([self.start, self.text], USAGE)
        names = [line for line in frames.split(b"\n") if line.startswith(b"event: ")]
        assert names == [b"event: message_start", b"event: content_block_delta"]
        started, delta = payloads(frames)
        assert started["message"] == {"id": "msg_1", "usage": OURS}
        assert delta == json.loads(bytes(self.text))

    def test_the_end_waits_for_the_last_count(self) -> None:
        dialect = dialect_of("messages")
        assert dialect.frames([self.delta, self.stop], Usage(50, 7)) == b""
        told, stopped = payloads(dialect.end(end(USAGE, pd_timing={"x": 1})))
        assert told == {**json.loads(bytes(self.delta)), "usage": OURS, "pd_timing": {"x": 1}}
        assert stopped == {"type": "message_stop"}

    def test_requests_do_not_share_an_end(self) -> None:
        first, second = dialect_of("messages"), dialect_of("messages")
        first.frames([self.delta, self.stop], USAGE)
        assert second.end(end(USAGE)) == b""

    def test_what_nobody_reports_is_not_told(self) -> None:
        [started] = payloads(dialect_of("messages").frames([self.start], Usage(50, 0)))
        assert started["message"]["usage"] == {"input_tokens": 50, "output_tokens": 0}

    def test_a_whole_answer_gets_our_id_and_usage(self) -> None:
        dialect = DIALECTS["messages"]
        usage = {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 3}}
        body = json.dumps({"type": "message", "id": "x", "content": [], "usage": usage}).encode()
        counted = dialect.counted(body)
        assert (counted.completion_tokens, counted.reasoning_tokens) == (7, 3)
        answer = json.loads(dialect.whole(body, "msg_2", 1000, USAGE))
        assert answer == {"type": "message", "id": "msg_2", "content": [], "usage": OURS}

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (408, "invalid_request_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (502, "api_error"),
            (503, "overloaded_error"),
            (504, "timeout_error"),
        ],
    )
    def test_errors(self, status: int, kind: str) -> None:
        error = ApiError("why", status=status)
        expected = {"type": "error", "error": {"type": kind, "message": "why"}}
        assert json.loads(DIALECTS["messages"].error(error, "r")) == {**expected, "request_id": "r"}
        frames = DIALECTS["messages"].error_frames(error)
        assert frames.startswith(b"event: error\n")
        assert payloads(frames) == [expected]

    def test_silence_is_filled_with_pings(self) -> None:
        assert payloads(DIALECTS["messages"].keepalive) == [{"type": "ping"}]


@pytest.mark.parametrize("endpoint", DIALECTS)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{}", b'{"usage": null}', b"\xff", pytest.param(b'{"x":' + b"[" * 2000 + b"}", id="deep")],
)
def test_an_answer_without_counts_is_unreadable(endpoint: str, body: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        DIALECTS[endpoint].counted(body)


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses"])
def test_openai_errors_are_openais(endpoint: str) -> None:
    for error in (NotFound("x", param="model"), Unavailable("y")):
        assert DIALECTS[endpoint].error(error, "r") == error.encode()
