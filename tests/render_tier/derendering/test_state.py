"""The state that travels with the client: small, its own, and no one else's."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from render_tier.derendering import Derenderer, DerenderSettings
from render_tier.protocol.errors import ApiError, BadRequest, ContextRequired
from tests.render_tier.derendering.conftest import TOOLS, Client, Served, folded, unfolded
from tests.support.qwen3_answers import CALL, THINK

Make = Callable[..., Client]

TEXT = THINK + "Sure.\n" + CALL


def without_context(who: Client, ids: list[int], state: Any, **more: Any) -> Any:
    return who.chunk(ids, state, more={"chat_request": None, "prompt_token_ids": None, **more})


def test_any_replica_goes_on(client: Make) -> None:
    replicas = [client({"tools": TOOLS}) for _ in range(3)]
    ids = replicas[0].encode(TEXT)
    answers: list[Any] = []
    state = None
    for number, token_id in enumerate(ids):
        last = number == len(ids) - 1
        answers.append(replicas[number % 3].chunk([token_id], state, "stop" if last else None))
        state = answers[-1]["stream_state"]
    assert folded(answers) == unfolded(replicas[0].whole(ids))


def test_after_the_first_call_neither_request_nor_prompt_need_travel(client: Make) -> None:
    who = client({"tools": TOOLS})
    ids = who.encode(TEXT)
    first = who.chunk(ids[:5])
    digest = first["derender"]["context"]
    again = who.chunk(ids[5:], first["stream_state"])
    assert without_context(who, ids[5:], first["stream_state"]) == again
    assert without_context(who, ids[5:], first["stream_state"], context=digest) == again
    assert without_context(who, ids[:5], None, context=digest) == first


def test_a_replica_that_does_not_know_the_request_asks_for_it(client: Make) -> None:
    who, other = client(), client()
    first = who.chunk([1])
    for more in ({}, {"context": first["derender"]["context"]}):
        with pytest.raises(ContextRequired) as refused:
            without_context(other, [1], first["stream_state"], **more)
        assert refused.value.status == 409
    # With one of the two parts the request is still not known; with both it is.
    with pytest.raises(ContextRequired):
        other.chunk([1], first["stream_state"], more={"prompt_token_ids": None})
    assert other.chunk([1], first["stream_state"]) == who.chunk([1], first["stream_state"])
    assert without_context(other, [1], first["stream_state"])["chunk"]


def test_contexts_are_bounded_and_the_oldest_goes_first(client: Make) -> None:
    who = client(context_cache_entries=2)
    states = []
    for number in range(3):
        who.request = {"messages": [{"role": "user", "content": str(number)}]}
        states.append(who.chunk([1])["stream_state"])
    with pytest.raises(ContextRequired):
        without_context(who, [1], states[0])
    for state in states[1:]:
        without_context(who, [1], state)


def test_a_state_belongs_to_its_request(client: Make) -> None:
    who = client()
    state = who.chunk([1])["stream_state"]
    who.request = {"messages": [{"role": "user", "content": "other"}]}
    with pytest.raises(BadRequest, match="another request"):
        who.chunk([1], state)
    with pytest.raises(BadRequest, match="another request"):
        without_context(who, [1], state, context="00" * 16)


def test_a_state_belongs_to_its_choice(client: Make) -> None:
    who = client()
    state = who.chunk([1])["stream_state"]
    with pytest.raises(BadRequest, match="choice 0, not 1"):
        who.chunk([1], state, index=1)


def test_a_state_of_another_model_or_key_is_refused(client: Make, served: Served) -> None:
    who = client()
    state = who.chunk([1])["stream_state"]
    parsers = {"reasoning_parser": "qwen3", "tool_parser": "hermes"}
    others = [
        (dataclasses.replace(served, fingerprint="two"), DerenderSettings(**parsers), "another model"),
        (served, DerenderSettings(reasoning_parser="qwen3"), "another model"),
        (served, DerenderSettings(**parsers, state_keys=(b"secret",)), "another key"),
    ]
    for model, options, reason in others:
        other = dataclasses.replace(who, derenderer=Derenderer(model, options))
        with pytest.raises(BadRequest, match=reason):
            other.chunk([1], state)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_a_damaged_state_is_refused(client: Make, where: int, flip: int, cut: bool) -> None:
    who = client()
    state = who.chunk(who.encode("<think>x"))["stream_state"]
    data = bytearray(base64.urlsafe_b64decode(state["s"]))
    if cut:
        del data[where % len(data) :]
    else:
        data[where % len(data)] ^= flip
    with pytest.raises(BadRequest) as refused:
        who.chunk([1], {"v": 1, "s": base64.urlsafe_b64encode(bytes(data)).decode()})
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "state",
    [
        {"v": 2, "s": ""},
        {"v": 1, "s": "!"},
        {"v": 1, "s": "é"},
        {"v": 1, "s": 5},
        {"v": 1},
        {"v": 1, "s": None},
        {"v": 1, "output_token_ids": [1], "output_chunk_lens": [1]},
        {"v": 1, "s": ""},
        {"v": 1, "s": " "},
        {"v": 1, "s": ["AAAA"]},
        {"v": 1, "s": {"s": "AAAA"}},
        {"v": 1, "s": True},
        {"v": 1, "s": "\ud800"},
        {"v": None, "s": "AAAA"},
        {"v": "1", "s": "AAAA"},
        {"v": 1.5, "s": "AAAA"},
        {"v": -1, "s": "AAAA"},
        {"v": 1 << 70, "s": "AAAA"},
        {"s": "AAAA"},
        {"s": None},
        False,
        [],
        "x",
        7,
        {"output_token_ids": [1], "output_chunk_lens": [2]},
        {"output_token_ids": [1], "output_chunk_lens": [2, -1]},
        {"output_token_ids": [-1], "output_chunk_lens": [1]},
        {"output_token_ids": [1 << 70], "output_chunk_lens": [1]},
        {"output_token_ids": [1] * 5000, "output_chunk_lens": [5000]},
        {"prev_tokens": ["a"] * 1025},
        {"prev_tokens": ["a"], "prefix_offset": 3, "read_offset": 1},
        {"logprob_context_token_ids": [1] * 5},
        {"logprob_text_offset": -1},
        {"output_token_ids": "x"},
    ],
)
def test_what_is_no_state_is_refused(client: Make, state: Any) -> None:
    with pytest.raises(ApiError) as refused:
        client().chunk([1], state)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "state",
    [b'{"v":1,"s":"\xff"}', b'{"prev_tokens":["\xff"]}', b'{"\xff":1}', b'{"v":1,"s":"AAAA"', b"[" * 5000],
)
def test_bytes_that_are_no_json_are_refused(client: Make, state: bytes) -> None:
    who = client()
    body = json.dumps({"stream": True, "generate_chunk": {"request_id": "x", "choices": []}}).encode()
    with pytest.raises(ApiError) as refused:
        who.derenderer.chat(body[:-1] + b',"stream_state":' + state + b"}")
    assert refused.value.status == 400


def test_what_a_state_has_besides_is_ignored(client: Make) -> None:
    who = client()
    state = who.chunk([1])["stream_state"]
    more = {**state, "output_token_ids": [1], "output_chunk_lens": [9], "x": None}
    assert who.chunk([1], more) == who.chunk([1], state)


def test_an_oversized_state_is_refused(client: Make) -> None:
    with pytest.raises(BadRequest, match="longer than"):
        client(max_state_bytes=10).chunk([1], {"v": 1, "s": "A" * 200_000})


def test_a_stream_cannot_outgrow_the_model(client: Make) -> None:
    who = client()
    state = who.chunk([1] * 2000)["stream_state"]
    with pytest.raises(BadRequest, match="exceeds max_model_len"):
        who.chunk([1] * 2100, state)


def test_the_state_is_small_and_does_not_grow(client: Make) -> None:
    who = client({"tools": TOOLS, "stop": ["nowhere"]})
    sizes = []
    state = None
    for text in (
        "<think>so ",
        *["it goes and goes "] * 60,
        "</think>",
        *["and on "] * 60,
        TEXT[-80:-30],
        *["x y "] * 60,
    ):
        state = who.chunk(who.encode(text), state)["stream_state"]
        sizes.append(len(state["s"]))
    assert max(sizes) <= 600
    assert max(sizes[60:120]) <= max(sizes[:60]) + 8


class TestVllmState:
    """A stream that began at a vLLM derender goes on here, from any chunk."""

    @pytest.mark.parametrize("fields", [{"tools": TOOLS}, {}, {"tools": TOOLS, "include_reasoning": False}])
    def test_the_rest_of_the_stream_is_the_rest_of_the_answer(
        self, client: Make, fields: dict[str, Any]
    ) -> None:
        who = client(fields)
        ids = who.encode(TEXT)
        whole = unfolded(who.whole(ids))
        for position in range(1, len(ids)):
            before = who.stream([[i] for i in ids[:position]] + [[]], None)  # type: ignore[arg-type]
            sent = folded(before)["message"]
            peer = {
                "role_sent": True,
                "output_token_ids": ids[:position],
                "output_chunk_lens": [1] * position,
                "last_tool_call_ids": [call["id"] for call in sent["tool_calls"]],
            }
            rest = who.chunk(ids[position:], peer, "stop")
            delta = rest["chunk"]["choices"][0]["delta"]
            assert delta["role"] is None
            content = sent["content"] + (delta["content"] or "")
            # White space that we would hold back was sent by vLLM.
            assert content.strip() == whole["message"]["content"].strip()
            assert sent["reasoning"] + (delta["reasoning"] or "") == whole["message"]["reasoning"]
            assert rest["derender"]["completion_tokens"] == len(ids)

    def test_a_name_that_was_sent_is_not_sent_again(self, client: Make) -> None:
        who = client({"tools": TOOLS})
        ids = who.encode('</think><tool_call>{"name": "f", "arguments": {}}</tool_call>')
        named = who.encode('</think><tool_call>{"name": "f",')
        assert ids[: len(named)] == named
        peer = {
            "output_token_ids": named,
            "output_chunk_lens": [len(named)],
            "last_tool_call_ids": ["theirs"],
        }
        calls = who.chunk(ids[len(named) :], peer, "stop")["chunk"]["choices"][0]["delta"]["tool_calls"]
        assert [call["id"] for call in calls] == [None]

    def test_a_usage_chunk_needs_no_tokens(self, client: Make) -> None:
        answer = client().chunk([], {}, more={"generate_chunk": {"request_id": "x", "choices": []}})
        assert answer["chunk"]["choices"] == []
        assert answer["derender"]["empty"]


def test_without_a_parser_nothing_but_the_chunk_is_needed(client: Make) -> None:
    who = client(reasoning_parser=None, tool_parser=None)
    state, text = None, ""
    for token_id in who.encode("Plain 𓂀 text"):
        body = {"stream": True, "generate_chunk": {"request_id": "x", "choices": [{"token_ids": [token_id]}]}}
        answer = json.loads(who.derenderer.chat(json.dumps({**body, "stream_state": state}).encode()))
        state = answer["stream_state"]
        text += answer["chunk"]["choices"][0]["delta"]["content"] or ""
    assert text == "Plain 𓂀 text"
