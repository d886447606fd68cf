"""Responses derender: events as OpenAI's clients read them, for every chunking, and the whole answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from render_tier.core.events import CallArguments, CallStart, Text
from render_tier.core.table import Region
from render_tier.derendering import Derenderer
from render_tier.derendering.item_writer import ItemWriter, ResponseProgress
from render_tier.protocol.derender import StreamStart
from render_tier.protocol.errors import BadRequest, ContextRequired
from render_tier.protocol.response_stream import ResponseStream
from tests.render_tier.derendering.conftest import EOS, Client
from tests.render_tier.derendering.test_forged_state import edited, retagged
from tests.support.qwen3_answers import CALL, RESPONSES_TOOLS, THINK, call
from tests.support.response_events import read

Make = Callable[..., Client]

PROGRESS = 16
"""Its place in a state."""

ANSWERS = {
    "answer": THINK + "The answer is 4.",
    "call": THINK + CALL,
    "words and calls": THINK + "Sure.\n" + call("f", "{}") + "\n" + call("crm__find", '{"a": 1}'),
    "custom": THINK + call("note", r'{"input": "a \"q\" \u00e9 \ud83d\ude00\n b"}'),
    "unfinished reasoning": "<think>\nI am still",
    "unfinished call": THINK + CALL[:50],
    "no call after all": THINK + "<tool_call>{oops}</tool_call> so",
    "nothing": "",
}


@dataclass
class Responses:
    """Sends bodies as a client would, and reads events and responses as OpenAI's client does."""

    derenderer: Derenderer
    encode: Callable[[str], list[int]]
    prompt: list[int]
    request: dict[str, Any] = field(default_factory=lambda: {"input": "hi", "tools": RESPONSES_TOOLS})
    request_id: str = "resp_1"

    def ask(self, **body: Any) -> Any:
        asked = {"responses_request": self.request, "prompt_token_ids": self.prompt, **body}
        return json.loads(self.derenderer.responses(json.dumps(asked).encode()))

    def whole(self, ids: list[int], finish: str = "stop", **choice: Any) -> Any:
        choices = [{"index": 0, "token_ids": ids, "finish_reason": finish, **choice}]
        return self.ask(generate_response={"request_id": self.request_id, "created": 7, "choices": choices})

    def chunk(self, ids: list[int], state: Any = None, finish: str | None = None, **more: Any) -> Any:
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish}
        if (logprobs := more.pop("logprobs", None)) is not None:
            choice["logprobs"] = logprobs
        chunk = {"request_id": self.request_id, "created": 7, "choices": [choice]}
        return self.ask(stream=True, generate_chunk=chunk, stream_state=state, **more)

    def stream(self, pieces: list[list[int]], finish: str = "stop", logprobs: Any = None) -> list[Any]:
        """Whole events."""
        reader = ResponseStream()
        events, state, at = [], None, 0
        for number, ids in enumerate(pieces):
            last = number == len(pieces) - 1
            entries = None if logprobs is None else {"content": logprobs[at : at + len(ids)]}
            at += len(ids)
            answer = self.chunk(ids, state, finish if last else None, logprobs=entries)
            state = answer["stream_state"]
            for event in answer["events"]:
                kind, data = reader.add(msgspec.json.encode(event))
                events.append(json.loads(data))
                assert events[-1]["type"] == kind
            if reader.ended:  # a stop string may come before the last piece
                break
        assert reader.ended
        return events


@pytest.fixture
def responses(client: Make) -> Callable[..., Responses]:
    def make(request: dict[str, Any] | None = None) -> Responses:
        who = client()
        made = Responses(who.derenderer, who.encode, who.prompt)
        made.request |= request or {}
        return made

    return make


def cut(ids: list[int], size: int) -> list[list[int]]:
    return [ids[at : at + size] for at in range(0, len(ids), size)]


def logprobs_of(ids: list[int]) -> list[Any]:
    return [{"token_id": i, "logprob": -0.5, "top_logprobs": [{"token_id": i, "logprob": -0.5}]} for i in ids]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "request_fields",
    [
        {},
        {"tools": []},
        {"include_reasoning": False},
        {"parallel_tool_calls": False},
        {"tool_choice": "required"},
        {"stop": ["answer", "} so"]},
    ],
    ids=["tools", "no tools", "hidden reasoning", "one call", "required", "stop strings"],
)
def test_streams_give_what_whole_gives(
    responses: Callable[..., Responses], name: str, size: int, request_fields: dict[str, Any]
) -> None:
    who = responses({**request_fields, "include": ["message.output_text.logprobs"], "top_logprobs": 1})
    ids = [*who.encode(ANSWERS[name]), EOS]
    entries = logprobs_of(ids)
    whole = who.whole(ids, logprobs={"content": entries})
    Response.model_validate(whole)
    events = who.stream(cut(ids, size), logprobs=entries)
    assert read(events) == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.lists(st.sampled_from([*ANSWERS.values(), "\n", " x", "</think>", "<tool_call>"]), max_size=3),
    st.lists(st.integers(0, 151_700), max_size=6),
    st.lists(st.integers(0, 100), max_size=8),
    st.sampled_from(["stop", "length", "abort", "error"]),
)
def test_any_output_in_any_chunking(
    responses: Callable[..., Responses], texts: list[str], soup: list[int], cuts: list[int], finish: str
) -> None:
    who = responses({"stop": ["4.", "oops"]})
    ids = [*who.encode("".join(texts)), *soup]
    places = sorted({0, *(place for place in cuts if place < len(ids)), len(ids)})
    pieces = [ids[a:b] for a, b in pairwise(places)] or [[]]
    events = who.stream(pieces, finish)
    assert read(events) == who.whole(ids, finish)


def test_an_answer_is_items_in_the_order_in_which_they_were_written(
    responses: Callable[..., Responses],
) -> None:
    who = responses()
    whole = who.whole([*who.encode(ANSWERS["words and calls"]), EOS])
    items = whole["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "\nHm — 𓂀.\n"}]
    assert items[1]["content"][0]["text"].strip() == "Sure."
    assert (items[2]["name"], items[2]["arguments"]) == ("f", "{}")
    assert (items[3]["name"], items[3]["namespace"]) == ("find", "crm")
    assert [item["id"].partition("_")[0] for item in items] == ["rs", "msg", "fc", "fc"]
    assert len({item["id"] for item in items}) == 4
    assert items[2]["call_id"].startswith("call_")
    assert items[2]["call_id"] != items[3]["call_id"]
    assert {item["status"] for item in items} == {"completed"}
    assert whole["status"] == "completed"
    assert whole["usage"]["output_tokens"] == len(who.encode(ANSWERS["words and calls"])) + 1
    assert 0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < whole["usage"]["output_tokens"]
    assert whole["usage"]["input_tokens"] == len(who.prompt)


def test_the_input_of_a_custom_tool_is_the_text(responses: Callable[..., Responses]) -> None:
    who = responses()
    (item,) = [
        item
        for item in who.whole([*who.encode(ANSWERS["custom"]), EOS])["output"]
        if item["type"] == "custom_tool_call"
    ]
    assert (item["name"], item["input"]) == ("note", 'a "q" é 😀\n b')


def test_what_is_cut_by_the_limit_is_incomplete(responses: Callable[..., Responses]) -> None:
    who = responses()
    ids = who.encode(ANSWERS["unfinished call"])
    events = who.stream(cut(ids, 4), "length")
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    aborted = who.whole(ids, "abort")
    assert (aborted["status"], aborted["incomplete_details"]) == ("cancelled", None)


@pytest.mark.parametrize(
    ("finish", "status", "last", "item"),
    [
        ("stop", "completed", "completed", "completed"),
        ("length", "incomplete", "incomplete", "incomplete"),
        ("abort", "cancelled", "incomplete", "incomplete"),
        ("error", "failed", "failed", "incomplete"),
    ],
)
def test_how_the_engine_ended_is_how_the_response_did(
    responses: Callable[..., Responses], finish: str, status: str, last: str, item: str
) -> None:
    who = responses()
    ids = who.encode(ANSWERS["answer"])
    events = who.stream(cut(ids, 4), finish)
    assert events[-1]["type"] == f"response.{last}"
    response = events[-1]["response"]
    assert (response["status"], response["output"][-1]["status"]) == (status, item)
    assert (response["error"] is None) == (status != "failed")
    assert read(events) == who.whole(ids, finish)


class Piece(str):
    """Text that notes when it is put behind other text by itself."""

    __slots__ = ()
    copies = 0

    def __radd__(self, other: str) -> str:
        Piece.copies += 1
        return f"{other}{self:s}"


@pytest.mark.parametrize(
    ("first", "make"),
    [
        ([], lambda text: Text(Region.CONTENT, text)),
        ([], lambda text: Text(Region.REASONING, text)),
        ([CallStart(0, "f")], lambda text: CallArguments(0, text)),
    ],
    ids=["text", "reasoning", "arguments"],
)
def test_a_long_item_is_put_together_once(
    responses: Callable[..., Responses], first: list[Any], make: Callable[[str], Any]
) -> None:
    who = responses()
    start = StreamStart(
        msgspec.Raw(), msgspec.Raw(json.dumps(who.request).encode()), msgspec.Raw(b"[1]"), 1, None
    )
    stream = who.derenderer.streams.begin("responses", start, "resp_1", 7, 0)
    writer = ItemWriter(ResponseProgress(), stream.output.context, "resp_1")
    writer.write(first, [])
    for number in range(100):
        writer.write([make(Piece(f"{number} "))], [])
    assert Piece.copies == 0
    deltas = [event.delta for event in writer.events if hasattr(event, "delta")]
    assert deltas == ["".join(f"{number} " for number in range(100))]


def test_tokens_without_text_leave_nothing_behind_in_the_state(responses: Callable[..., Responses]) -> None:
    who = responses({"include": ["message.output_text.logprobs"], "top_logprobs": 1, "tools": []})
    silent = 151643  # skipped: it shows no text
    head = who.encode(THINK + "Hi")

    def entries(ids: list[int]) -> Any:
        return {"content": logprobs_of(ids)}

    sizes = {}
    for beginning in (head, who.encode(THINK)):
        state = who.chunk(beginning, logprobs=entries(beginning))["stream_state"]
        for number in range(1, 9):
            ids = [silent] * 100
            state = who.chunk(ids, state, logprobs=entries(ids))["stream_state"]
            sizes[number] = len(state["s"])
        assert sizes[8] <= sizes[4] + 64
    # Those of an open message are told; whatever the chunks, what is said is the same.
    ids = [*head, *[silent] * 5, *who.encode(" there"), EOS]
    whole = who.whole(ids, logprobs=entries(ids))
    for size in (1, 3):
        assert read(who.stream(cut(ids, size), logprobs=logprobs_of(ids))) == whole


def test_the_response_repeats_the_request(responses: Callable[..., Responses]) -> None:
    asked = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "temperature": 0.25,
        "max_output_tokens": 9,
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low"},
        "tool_choice": "required",
        "truncation": "auto",
        "user": "u",
    }
    response = responses(asked).whole([1])
    assert {name: response[name] for name in asked} == asked
    assert response["tools"] == RESPONSES_TOOLS
    assert (response["store"], response["background"], response["top_p"]) == (False, False, 1.0)


def test_logprobs_are_those_of_the_text(responses: Callable[..., Responses]) -> None:
    who = responses({"include": ["message.output_text.logprobs"], "top_logprobs": 0})
    ids = [*who.encode(ANSWERS["answer"]), EOS]
    (message,) = [
        item
        for item in who.whole(ids, logprobs={"content": logprobs_of(ids)})["output"]
        if item["type"] == "message"
    ]
    (part,) = message["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "\n\nThe answer is 4."
    assert all(entry["top_logprobs"] == [] for entry in part["logprobs"])


def test_the_state_does_not_grow_with_the_output(responses: Callable[..., Responses]) -> None:
    who = responses()
    sizes, state = [], None
    ids = who.encode(THINK + "The answer is 4. " * 300)
    for at in range(0, len(ids), 100):
        answer = who.chunk(ids[at : at + 100], state)
        state = answer["stream_state"]
        sizes.append(len(state["s"]))
    assert max(sizes) < 600
    assert sizes[-1] <= sizes[2] + 8


def test_any_replica_goes_on_and_a_repeated_call_gives_the_same(
    responses: Callable[..., Responses],
) -> None:
    replicas = [responses() for _ in range(3)]
    ids = [*replicas[0].encode(ANSWERS["words and calls"] + ANSWERS["custom"]), EOS]
    reader, state = ResponseStream(), None
    for number, token_id in enumerate(ids):
        finish = "stop" if number == len(ids) - 1 else None
        answer = replicas[number % 3].chunk([token_id], state, finish)
        assert replicas[(number + 1) % 3].chunk([token_id], state, finish) == answer
        for event in answer["events"]:
            reader.add(msgspec.json.encode(event))
        state = answer["stream_state"]
    assert reader.ended
    assert reader.output == replicas[0].whole(ids)["output"]


def test_after_the_first_call_the_request_need_not_travel(responses: Callable[..., Responses]) -> None:
    who, other = responses(), responses()
    first = who.chunk([1])
    bare = {"responses_request": None, "prompt_token_ids": None}
    again = who.chunk([2], first["stream_state"], **bare)
    assert again == who.chunk([2], first["stream_state"])
    with pytest.raises(ContextRequired):
        other.chunk([2], first["stream_state"], **bare)


def test_after_the_end_there_are_no_more_events(responses: Callable[..., Responses]) -> None:
    who = responses()
    last = who.chunk([1], None, "stop")
    assert last["events"][-1]["type"] == "response.completed"
    assert last["derender"]["finished"] is True
    late = who.chunk([2], last["stream_state"], "stop")
    assert (late["events"], late["derender"]["empty"]) == ([], True)


def test_a_state_of_another_endpoint_or_request_is_refused(
    responses: Callable[..., Responses], client: Make
) -> None:
    chat = client()
    who = Responses(chat.derenderer, chat.encode, chat.prompt, request_id=chat.request_id)
    state = chat.chunk([1])["stream_state"]
    with pytest.raises(BadRequest, match="belongs to another request"):
        who.chunk([2], state)
    mine = who.chunk([1])["stream_state"]
    with pytest.raises(BadRequest, match="belongs to another request"):
        chat.chunk([2], mine)
    with pytest.raises(BadRequest, match="not one of this endpoint"):
        who.chunk([2], {"output_token_ids": [1], "output_chunk_lens": [1]})


@pytest.mark.parametrize(
    "progress",
    [
        b"\xff",
        msgspec.msgpack.encode(["x"]),
        msgspec.msgpack.encode([0, 0, 9]),
        msgspec.msgpack.encode([0] * 9),
        msgspec.msgpack.encode([2**64 - 1]),
        msgspec.msgpack.encode([0, 2**64 - 1]),
        msgspec.msgpack.encode([0, -1]),
    ],
)
def test_progress_that_was_made_up_is_refused(responses: Callable[..., Responses], progress: bytes) -> None:
    who = responses()
    state = who.chunk([1])["stream_state"]
    with pytest.raises(BadRequest, match="damaged"):
        who.chunk([2], retagged(edited(state, PROGRESS, progress)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.tuples(st.integers(0, 9) | st.just(2**53), st.integers(0, 9) | st.just(2**53), st.integers(0, 4)),
    st.tuples(st.text(max_size=5), st.text(max_size=5), st.binary(max_size=9)),
)
def test_progress_of_impossible_places_does_no_harm(
    responses: Callable[..., Responses], places: tuple[int, ...], held: tuple[Any, ...]
) -> None:
    who = responses()
    state = who.chunk(who.encode(THINK + "<tool_call>"))["stream_state"]
    forged = retagged(edited(state, PROGRESS, msgspec.msgpack.encode([*places, *held])))
    rest = who.encode('\n{"name": "note", "arguments": {"input": "x"}}\n</tool_call>')
    assert who.chunk(rest, forged, "stop")["events"][-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "generate_response"),
        ({"generate_response": {"request_id": "r", "choices": []}}, "one choice"),
        ({"stream": True}, "generate_chunk"),
        ({"generate_response": {"request_id": "r", "choices": [{}]}, "responses_request": None}, "required"),
        (
            {"generate_response": {"request_id": "r", "choices": [{}]}, "responses_request": {"input": 5}},
            "body.input",
        ),
        (
            {"generate_response": {"request_id": "r", "choices": [{"token_ids": [10**6]}]}},
            "out of vocabulary",
        ),
    ],
)
def test_what_is_wrong_is_said(responses: Callable[..., Responses], body: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        responses().ask(**body)
