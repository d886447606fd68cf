"""Messages derender: blocks, events, stop reasons, usage and ids, whole and by the chunk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from render_tier.derendering import Derenderer, DerenderSettings
from render_tier.derendering.session import Budget, Session
from render_tier.protocol.errors import ApiError, BadRequest, ContextRequired
from tests.render_tier.derendering.conftest import EOS, Client
from tests.render_tier.derendering.test_forged_state import edited, retagged
from tests.support.messages_stream import read, with_input
from tests.support.qwen3_answers import CALL

msgpack = msgspec.msgpack.encode

Make = Callable[..., Client]
REQUEST = {"model": "qwen3", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"name": "f", "input_schema": {"properties": {}}}]
TEXT = f"<think>\nHm — 𓂀 stop?\n</think>\n\nSure.\n{CALL}"


@dataclass
class Messages:
    """A client of the Messages endpoint."""

    derenderer: Derenderer
    encode: Callable[[str], list[int]]
    prompt: list[int]
    request: dict[str, Any]
    request_id: str = "msg_1"

    def whole(self, ids: list[int], finish: str = "stop", **more: Any) -> Any:
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": finish,
            "stop_reason": more.pop("stop", None),
        }
        body = {
            "generate_response": {
                "request_id": self.request_id,
                "choices": [choice],
                **more.pop("reply", {}),
            },
            "messages_request": self.request,
            "prompt_token_ids": self.prompt,
            **more,
        }
        return json.loads(self.derenderer.messages(json.dumps(body).encode()))

    def chunk(self, ids: list[int] | None, state: Any = None, finish: str | None = None, **more: Any) -> Any:
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": finish,
            "stop_reason": more.pop("stop", None),
        }
        chunk = {"request_id": self.request_id, "choices": [] if ids is None else [choice]}
        body = {
            "stream": True,
            "generate_chunk": {**chunk, **more.pop("reply", {})},
            "stream_state": state,
            "messages_request": self.request,
            "prompt_token_ids": self.prompt,
            **more,
        }
        return json.loads(self.derenderer.messages(json.dumps(body).encode()))

    def stream(self, pieces: list[list[int]], finish: str = "stop", **more: Any) -> list[Any]:
        answers: list[Any] = []
        for number, ids in enumerate(pieces):
            last = number == len(pieces) - 1
            state = answers[-1]["stream_state"] if answers else None
            answers.append(self.chunk(ids, state, finish if last else None, **(more if last else {})))
        return answers


@pytest.fixture
def messages(client: Make) -> Callable[..., Messages]:
    def make(request: dict[str, Any] | None = None, **settings: Any) -> Messages:
        who = client(**settings)
        return Messages(who.derenderer, who.encode, who.prompt, {**REQUEST, **(request or {})})

    return make


def events(answers: list[Any]) -> list[Any]:
    return [event for answer in answers for event in answer["events"]]


def text_of(blocks: list[Any]) -> list[Any]:
    return [(b["type"], b.get("text") or b.get("thinking") or b.get("input")) for b in blocks]


class TestBlocks:
    def test_come_in_the_order_of_the_output(self, messages: Callable[..., Messages]) -> None:
        who = messages({"tools": TOOLS})
        answer = who.whole(who.encode(f"{TEXT}\n{CALL}"))
        assert text_of(answer["content"]) == [
            ("thinking", "\nHm — 𓂀 stop?\n"),
            ("text", "\n\nSure.\n"),
            ("tool_use", {"x": "a 𓂀 b"}),
            ("tool_use", {"x": "a 𓂀 b"}),
        ]
        first, second = (block for block in answer["content"] if block["type"] == "tool_use")
        assert first["id"] != second["id"]
        assert first["id"].startswith("toolu_")

    def test_an_answer_without_anything_has_one_empty_text(self, messages: Callable[..., Messages]) -> None:
        who = messages()
        assert who.whole([EOS])["content"] == [{"type": "text", "text": ""}]
        assert read(events(who.stream([[EOS]])))["content"] == [{"type": "text", "text": ""}]

    def test_a_call_that_was_cut_has_what_is_whole_of_its_input(
        self, messages: Callable[..., Messages]
    ) -> None:
        who = messages({"tools": TOOLS})
        cut = '<think></think><tool_call>\n{"name": "f", "arguments": {"a": 1, "b": "ha'
        answer = who.whole(who.encode(cut), finish="length")
        assert answer["content"][-1]["input"] == {"a": 1}
        assert answer["stop_reason"] == "max_tokens"

    def test_input_keeps_the_text_that_the_model_wrote(self, messages: Callable[..., Messages]) -> None:
        who = messages({"tools": TOOLS})
        arguments = '{"n": 1.50, "big": 12345678901234567890123}'
        call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        body = {
            "generate_response": {
                "request_id": "msg_1",
                "choices": [{"index": 0, "token_ids": who.encode(f"<think></think>{call}")}],
            },
            "messages_request": who.request,
            "prompt_token_ids": who.prompt,
        }
        assert f'"input":{arguments}'.encode() in who.derenderer.messages(json.dumps(body).encode())

    def test_calls_beyond_the_first_are_left_out_where_they_may_not_be_parallel(
        self, messages: Callable[..., Messages]
    ) -> None:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        who = messages({"tools": TOOLS, "tool_choice": choice})
        ids = who.encode(f"<think></think>{CALL}\n{CALL}")
        assert [block["type"] for block in who.whole(ids)["content"]].count("tool_use") == 1
        assert with_input(read(events(who.stream([[i] for i in ids])))) == who.whole(ids)

    def test_without_parsers_all_is_text(self, messages: Callable[..., Messages]) -> None:
        who = messages(reasoning_parser=None, tool_parser=None)
        answer = who.whole(who.encode("plain"))
        assert answer["content"] == [{"type": "text", "text": "plain"}]


class TestStops:
    @pytest.mark.parametrize(
        ("output", "finish", "expected"),
        [
            ("<think></think>Yes.", "stop", ("end_turn", None)),
            ("<think></think>Yes.", "length", ("max_tokens", None)),
            (f"<think></think>{CALL}", "stop", ("tool_use", None)),
            (f"<think></think>{CALL}", "length", ("max_tokens", None)),
            ("<think></think>Yes. STOP here", "stop", ("stop_sequence", "STOP")),
            ("<think></think>Yes. STOP here", "length", ("stop_sequence", "STOP")),
            (f"<think></think>{CALL} STOP", "stop", ("tool_use", None)),
            (
                '<think></think><tool_call>\n{"name": "f", "arguments": {"a": "STOP',
                "stop",
                ("stop_sequence", "STOP"),
            ),
            ("<think></think>Yes.", "abort", (None, None)),
        ],
    )
    def test_reasons(
        self, messages: Callable[..., Messages], output: str, finish: str, expected: tuple[Any, Any]
    ) -> None:
        who = messages({"tools": TOOLS, "stop_sequences": ["STOP"]})
        ids = who.encode(output)
        whole = who.whole(ids, finish)
        streamed = read(events(who.stream([[i] for i in ids], finish)))
        assert (whole["stop_reason"], whole["stop_sequence"]) == expected
        assert (streamed["stop_reason"], streamed["stop_sequence"]) == expected

    def test_a_forced_call_is_a_tool_use(self, messages: Callable[..., Messages]) -> None:
        who = messages({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "f"}})
        answer = who.whole(who.encode(f"<think></think>{CALL}"))
        assert answer["stop_reason"] == "tool_use"

    def test_a_matched_stop_sequence_asks_to_abort(self, messages: Callable[..., Messages]) -> None:
        who = messages({"stop_sequences": ["STOP"]})
        answer = who.chunk(who.encode("<think></think>Yes STOP and more"))
        assert answer["derender"]["finished"] is True
        assert answer["events"][-1] == {"type": "message_stop"}
        later = who.chunk(who.encode("more"), answer["stream_state"])
        assert later["events"] == []
        assert later["derender"]["empty"] is True


class TestUsage:
    def test_counts(self, messages: Callable[..., Messages]) -> None:
        who = messages()
        ids = who.encode("<think>so so</think>Yes.")
        usage = who.whole(ids, prompt_tokens=50)["usage"]
        assert (usage["input_tokens"], usage["output_tokens"]) == (50, len(ids))
        assert 0 < usage["output_tokens_details"]["thinking_tokens"] < len(ids)
        assert "cache_read_input_tokens" not in usage
        streamed = read(events(who.stream([[i] for i in ids], prompt_tokens=50)))
        assert streamed["usage"] == usage

    def test_cached_prompt_tokens_are_counted_apart(self, messages: Callable[..., Messages]) -> None:
        who = messages()
        usage = {"prompt_tokens": 50, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 32}}
        reply = {"usage": usage}
        whole = who.whole([40], reply=reply, prompt_token_ids=None, prompt_tokens=50)
        assert whole["usage"]["input_tokens"] == 18
        assert whole["usage"]["cache_read_input_tokens"] == 32
        start = who.chunk([40], reply=reply, prompt_tokens=50)["events"][0]
        assert start["message"]["usage"]["cache_read_input_tokens"] == 32

    def test_a_chunk_of_usage_alone_shows_nothing(self, messages: Callable[..., Messages]) -> None:
        who = messages()
        state = who.chunk([40], finish="stop")["stream_state"]
        answer = who.chunk(None, state, reply={"usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        assert answer["events"] == []


class TestStreams:
    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_any_chunking_gives_the_whole_message(
        self, make_messages: Callable[..., Messages], data: st.DataObject
    ) -> None:
        who = make_messages({"tools": TOOLS, "stop_sequences": ["THE END"]})
        parts = st.sampled_from(
            [TEXT, CALL, "Sure 𓂀.", "<think>", "</think>", "THE", " END", "\n\n", "<tool_call>"]
        )
        ids = who.encode("".join(data.draw(st.lists(parts, max_size=6))))
        cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)), max_size=8)))
        pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
        streamed = read(events(who.stream(pieces)))
        whole = who.whole(ids)
        for block in whole["content"]:
            if block["type"] == "tool_use":
                block["arguments"] = block.pop("input")
        for block, other in zip(streamed["content"], whole["content"], strict=True):
            if block["type"] == "tool_use" and isinstance(other["arguments"], dict):
                try:
                    block["arguments"] = json.loads(block["arguments"] or "{}")
                except ValueError:
                    block["arguments"] = other["arguments"]  # cut: the whole has what is whole of it
        assert streamed == whole

    def test_a_repeated_call_gives_the_same_events(self, messages: Callable[..., Messages]) -> None:
        ids = messages().encode(TEXT)
        replies = []
        for cache in (4096, 0):
            who = messages({"tools": TOOLS}, stream_cache_entries=cache)
            first = who.chunk(ids[:9])
            replies.append([first, *(who.chunk(ids[9:], first["stream_state"], "stop") for _ in range(2))])
        assert replies[0][1] == replies[0][2] == replies[1][1] == replies[1][2]

    def test_state_does_not_grow(self, messages: Callable[..., Messages]) -> None:
        who = messages({"tools": TOOLS})
        sizes = []
        state = None
        for number in range(40):
            answer = who.chunk(
                who.encode(f"<think></think>Line {number}\n{CALL}\n" if not number else CALL), state
            )
            state = answer["stream_state"]
            sizes.append(len(state["s"]))
        assert max(sizes[20:]) <= max(sizes[:20]) + 16

    def test_the_context_may_be_named(self, messages: Callable[..., Messages]) -> None:
        who = messages()
        first = who.chunk([40])
        named = {"context": first["derender"]["context"], "messages_request": None, "prompt_token_ids": None}
        assert who.chunk([41], first["stream_state"], **named)["events"]
        elsewhere = messages()
        with pytest.raises(ContextRequired):
            elsewhere.chunk([41], first["stream_state"], **named)

    def test_a_session_gives_the_same(self, messages: Callable[..., Messages]) -> None:
        who = messages({"tools": TOOLS})
        ids = who.encode(TEXT)
        session = Session(
            who.derenderer,
            Budget(4, 1 << 20),
            max_frames=4096,
            snapshot_tokens=8,
            idle_seconds=60,
            clock=lambda: 0.0,
        )
        opened = {
            "endpoint": "messages",
            "request_id": who.request_id,
            "request": who.request,
            "prompt_token_ids": who.prompt,
            "created": 1000,
        }
        answers: list[Any] = []
        for place, token in enumerate(ids):
            frame: dict[str, Any] = {"stream": 1, "chunk": {"choices": [{"index": 0, "token_ids": [token]}]}}
            if not place:
                frame["open"] = opened
            if place == len(ids) - 1:
                frame["chunk"]["choices"][0]["finish_reason"] = "stop"
            answers += json.loads(session.receive(json.dumps([frame])))
        single = who.stream([[i] for i in ids])
        assert [answer["events"] for answer in answers] == [answer["events"] for answer in single]
        assert [answer["derender"] for answer in answers] == [answer["derender"] for answer in single]
        snapshots = [
            (answer["stream_state"], single[place]["stream_state"])
            for place, answer in enumerate(answers)
            if "stream_state" in answer
        ]
        assert snapshots
        assert all(ours == other for ours, other in snapshots)


class TestRefusals:
    def test_a_state_of_another_endpoint(self, messages: Callable[..., Messages], client: Make) -> None:
        who, chat = messages(), client()
        chat.request_id = who.request_id
        with pytest.raises(BadRequest, match="another request"):
            who.chunk([41], chat.chunk([40])["stream_state"])

    def test_a_state_of_vllm(self, messages: Callable[..., Messages]) -> None:
        with pytest.raises(BadRequest, match="not one of this endpoint"):
            messages().chunk([41], {"output_token_ids": [40], "output_chunk_lens": [1]})

    @pytest.mark.parametrize(
        "progress",
        [b"x", b"\xc1", msgpack([-1, 0, 0, False]), msgpack([1, 9, 0, False]), msgpack([0] * 5), 5],
    )
    def test_a_made_up_place_in_the_stream(self, messages: Callable[..., Messages], progress: Any) -> None:
        """Without a key anyone can write a state; one that says nonsense is refused all the same."""
        who = messages(stream_cache_entries=0)
        state = who.chunk([40])["stream_state"]
        with pytest.raises(BadRequest, match="damaged"):
            who.chunk([41], retagged(edited(state, 16, progress)))

    def test_no_request(self, messages: Callable[..., Messages]) -> None:
        for call in (messages().whole, messages().chunk):
            with pytest.raises(BadRequest, match="messages_request is required"):
                call([40], messages_request=None)

    @pytest.mark.parametrize(
        "request_fields",
        [{"max_tokens": None}, {"stop_sequences": list("abcde")}, {"tools": [{"name": "x"}]}],
    )
    def test_what_render_would_refuse(
        self, messages: Callable[..., Messages], request_fields: dict[str, Any]
    ) -> None:
        with pytest.raises(BadRequest):
            messages(request_fields).chunk([40])

    def test_several_choices(self, messages: Callable[..., Messages]) -> None:
        who = messages()
        choices = [{"index": index, "token_ids": [40]} for index in range(2)]
        with pytest.raises(ApiError):
            who.whole([40], reply={"choices": choices})
        with pytest.raises(ApiError):
            who.chunk([40], reply={"choices": choices})

    def test_out_of_bounds(self, messages: Callable[..., Messages]) -> None:
        who = messages()
        for ids in ([1 << 40], [-1], [1] * 5000):
            with pytest.raises(BadRequest):
                who.whole(ids)
            with pytest.raises(BadRequest):
                who.chunk(ids)


@pytest.fixture(scope="session")
def make_messages(served: Any, encode: Callable[[str], list[int]]) -> Callable[[dict[str, Any]], Messages]:
    """One derenderer for many examples."""
    settings = DerenderSettings(reasoning_parser="qwen3", tool_parser="hermes")
    derenderer = Derenderer(served, settings, clock=lambda: 1000.9)
    prompt = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    return lambda request: Messages(derenderer, encode, prompt, {**REQUEST, **request})
