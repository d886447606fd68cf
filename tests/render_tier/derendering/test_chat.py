"""Chat derender: whole and streamed answers agree, and say what the coupled server's clients rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from render_tier.protocol.errors import ApiError, BadRequest
from tests.render_tier.derendering.conftest import EOS, TOOLS, Client, folded, unfolded
from tests.support.qwen3_answers import CALL, THINK

Make = Callable[..., Client]

ANSWERS = {
    "answer": THINK + "The answer is 4.",
    "call": THINK + CALL,
    "words and calls": THINK + "Sure.\n" + CALL + "\n" + CALL,
    "unfinished reasoning": "<think>\nI am still",
    "unfinished call": THINK + CALL[:50],
    "no call after all": THINK + "<tool_call>{oops}</tool_call> so",
}


def logprobs(ids: list[int]) -> list[Any]:
    return [
        {
            "token_id": i,
            "logprob": -0.5,
            "rank": 1,
            "top_logprobs": [{"token_id": i, "logprob": -0.5, "rank": 1}],
        }
        for i in ids
    ]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "request_fields",
    [
        {"tools": TOOLS},
        {},
        {"tools": TOOLS, "include_reasoning": False},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "stop": ["answer", "} so"], "min_tokens": 3},
    ],
    ids=["tools", "no tools", "hidden reasoning", "one call", "none", "required", "stop strings"],
)
def test_streams_give_what_whole_gives(
    client: Make, name: str, size: int, request_fields: dict[str, Any]
) -> None:
    who = client({**request_fields, "logprobs": True, "return_token_ids": True})
    ids = [*who.encode(ANSWERS[name]), EOS]
    entries = logprobs(ids)
    whole = unfolded(who.whole(ids, logprobs={"content": entries}))
    answers = who.stream([ids[at : at + size] for at in range(0, len(ids), size)], logprobs=entries)
    assert folded(answers) == whole
    assert answers[-1]["derender"]["completion_tokens"] == (len(whole["token_ids"]) or len(ids))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.lists(st.sampled_from([*ANSWERS.values(), "\n", " x", "</think>", "<tool_call>"]), max_size=3),
    st.lists(st.integers(0, 151_700), max_size=6),
    st.lists(st.integers(0, 100), max_size=8),
    st.sampled_from(["stop", "length", "abort"]),
)
def test_any_output_in_any_chunking(
    client: Make, texts: list[str], soup: list[int], cuts: list[int], finish: str
) -> None:
    who = client({"tools": TOOLS, "logprobs": True, "return_token_ids": True, "stop": ["4.", "oops"]})
    ids = who.encode("".join(texts)) + soup
    entries = logprobs(ids)
    whole = unfolded(who.whole(ids, finish, logprobs={"content": entries}))
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [ids[start:end] for start, end in pairwise(edges)]
    streamed = folded(who.stream(pieces, finish, logprobs=entries))
    assert streamed == whole
    assert len(whole["logprobs"]) == len(whole["token_ids"])


class TestFinish:
    @pytest.mark.parametrize(
        ("text", "fields", "engine", "finish"),
        [
            (CALL, {"tools": TOOLS}, "stop", "tool_calls"),
            (CALL, {"tools": TOOLS, "tool_choice": "required"}, "stop", "tool_calls"),
            (
                CALL,
                {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
                "stop",
                "stop",
            ),
            (CALL, {"tools": TOOLS}, "length", "length"),
            (CALL[:40], {"tools": TOOLS}, "length", "length"),
            ("no call", {"tools": TOOLS, "tool_choice": "required"}, "stop", "stop"),
            (CALL, {"tools": TOOLS, "tool_choice": "none"}, "stop", "stop"),
            (CALL, {}, "stop", "stop"),
            (CALL, {"tools": TOOLS}, "abort", "abort"),
        ],
    )
    def test_finish_reason(
        self, client: Make, text: str, fields: dict[str, Any], engine: str, finish: str
    ) -> None:
        who = client(fields)
        ids = who.encode(THINK + text)
        assert who.whole(ids, engine)["choices"][0]["finish_reason"] == finish
        assert folded(who.stream([ids[:20], ids[20:]], engine))["finish"] == [(finish, None)]

    def test_a_stop_on_eos_has_no_reason(self, client: Make) -> None:
        choice = client().whole([1, EOS], stop_reason=EOS)["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)

    def test_a_stop_token_of_the_request_is_named_and_not_shown(self, client: Make) -> None:
        who = client({"stop_token_ids": [13], "return_token_ids": True})
        choice = who.whole([*who.encode("</think>Yes"), 13, 1, 2], stop_reason=13)["choices"][0]
        assert (choice["message"]["content"], choice["stop_reason"]) == ("Yes", 13)
        assert choice["token_ids"][-3:] == [13, 1, 2]

    def test_the_stop_token_is_kept_when_asked_for(self, client: Make) -> None:
        who = client({"include_stop_str_in_output": True, "skip_special_tokens": False})
        ids = [*who.encode("</think>Yes"), EOS]
        assert who.whole(ids)["choices"][0]["message"]["content"] == "Yes<|im_end|>"

    def test_a_choice_without_tokens_is_an_empty_message(self, client: Make) -> None:
        choice = client().whole([], "abort")["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "abort")


class TestStopStrings:
    def test_a_match_ends_the_stream_and_says_so(self, client: Make) -> None:
        who = client({"stop": ["four"], "return_token_ids": True})
        pieces = [
            who.encode("</think>one two"),
            who.encode(" three fo"),
            who.encode("ur five"),
            who.encode(" six"),
        ]
        answers = who.stream(pieces, "abort")
        got = folded(answers)
        assert got["message"]["content"] == "one two three "
        assert got["finish"] == [("stop", "four")]
        assert answers[2]["chunk"]["choices"][0]["finish_reason"] == "stop"
        assert answers[3]["derender"]["empty"]
        counted = answers[-1]["derender"]["completion_tokens"]
        assert got["token_ids"] == [token_id for piece in pieces for token_id in piece][:counted]

    def test_reasoning_is_searched_unless_the_scope_is_content(self, client: Make) -> None:
        ids = client().encode("<think>stop here</think>then stop there")
        assert client({"stop": "stop"}).whole(ids)["choices"][0]["message"]["content"] is None
        content = client({"stop": "stop"}, stop_scope="content").whole(ids)["choices"][0]["message"]
        assert (content["reasoning"], content["content"]) == ("stop here", "then ")

    def test_usage_counts_up_to_the_match(self, client: Make) -> None:
        who = client({"stop": [" two"]})
        usage = who.whole(who.encode("</think>one two three four"))["usage"]
        assert usage["completion_tokens"] == 3
        assert usage["total_tokens"] == 3 + len(who.prompt)


class TestReasoning:
    def test_the_prompt_decides_where_the_output_starts(self, client: Make) -> None:
        who = client()
        ids = who.encode("words")
        who.prompt = who.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert who.whole(ids)["choices"][0]["message"]["content"] == "words"
        who.prompt = who.encode("<|im_start|>assistant\n<think>\n")
        assert who.whole(ids)["choices"][0]["message"]["reasoning"] == "words"

    def test_an_example_in_the_instructions_decides_nothing(self, client: Make) -> None:
        who = client()
        who.prompt = who.encode(
            "<|im_start|>user\nWrite <think>x</think> first<|im_end|>\n<|im_start|>assistant\n"
        )
        assert who.whole(who.encode("words"))["choices"][0]["message"]["reasoning"] == "words"

    @pytest.mark.parametrize(
        ("fields", "options"),
        [
            ({"chat_template_kwargs": {"enable_thinking": False}}, {}),
            ({"reasoning_effort": "none"}, {}),
            ({}, {"default_chat_template_kwargs": {"enable_thinking": False}}),
        ],
    )
    def test_thinking_turned_off_without_a_trace_in_the_prompt(
        self, client: Make, fields: dict[str, Any], options: dict[str, Any]
    ) -> None:
        who = client(fields, **options)
        assert who.whole(who.encode("words"))["choices"][0]["message"]["content"] == "words"

    def test_reasoning_tokens_are_counted(self, client: Make) -> None:
        who = client()
        ids = who.encode("<think>one two three</think>four")
        assert who.whole(ids)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
        assert who.stream([[i] for i in ids])[-1]["derender"]["reasoning_tokens"] == 3

    def test_hidden_reasoning_leaves_no_trace(self, client: Make) -> None:
        who = client({"include_reasoning": False, "logprobs": True, "return_token_ids": True})
        ids = [*who.encode("<think>secret</think>open"), EOS]
        for got in (
            unfolded(who.whole(ids, logprobs={"content": logprobs(ids)})),
            folded(who.stream([[i] for i in ids], logprobs=logprobs(ids))),
        ):
            assert "secret" not in json.dumps(got)
            assert [entry["token"] for entry in got["logprobs"]] == ["open"]
            assert got["token_ids"] == []


class TestCallIds:
    def test_a_repeated_chunk_gives_the_same_answer(self, client: Make) -> None:
        who = client({"tools": TOOLS})
        ids = who.encode(THINK + CALL)
        state = who.chunk(ids[:20])["stream_state"]
        assert who.chunk(ids[20:], state) == who.chunk(ids[20:], state)

    def test_ids_differ_by_request_choice_and_call(self, client: Make) -> None:
        who = client({"tools": TOOLS})
        ids = who.encode(THINK + CALL + CALL)
        seen = set()
        for request_id in ("a", "b"):
            for index in (0, 1):
                who.request_id = request_id
                for call in who.whole(ids, index=index)["choices"][0]["message"]["tool_calls"]:
                    assert call["id"].startswith("chatcmpl-tool-")
                    seen.add(call["id"])
        assert len(seen) == 8


def test_the_role_comes_with_the_first_chunk_and_is_not_called_empty(client: Make) -> None:
    who = client()
    answers = who.stream([[151667], [151668], who.encode("x")])
    assert [answer["chunk"]["choices"][0]["delta"]["role"] for answer in answers] == ["assistant", None, None]
    assert [answer["derender"]["empty"] for answer in answers] == [False, True, False]


def test_created_is_one_time_for_the_whole_stream(client: Make) -> None:
    who = client()
    first = who.chunk([1])
    assert first["chunk"]["created"] == 1000
    given_time = {
        "generate_chunk": {"request_id": who.request_id, "created": 5, "choices": [{"token_ids": [1]}]}
    }
    second = who.chunk([1], first["stream_state"], more=given_time)
    assert second["chunk"]["created"] == 5


def test_prompt_ids_are_passed_on_when_token_ids_are_asked_for(client: Make) -> None:
    chunk = {
        "generate_chunk": {"request_id": "x", "prompt_token_ids": [5, 6], "choices": [{"token_ids": [1]}]}
    }
    assert client({"return_token_ids": True}).chunk([], more=chunk)["chunk"]["prompt_token_ids"] == [5, 6]
    assert client().chunk([], more=chunk)["chunk"]["prompt_token_ids"] is None


def test_a_usage_chunk_keeps_its_details(client: Make) -> None:
    who = client()
    state = who.chunk(who.encode("<think>a b</think>"))["stream_state"]
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    chunk = {"request_id": who.request_id, "choices": [], "usage": usage}
    answer = who.chunk([], state, more={"generate_chunk": chunk})
    assert answer["chunk"]["choices"] == []
    assert answer["chunk"]["usage"] == {
        "prompt_tokens": 9,
        "total_tokens": 13,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert not answer["derender"]["empty"]


def test_logprobs_spell_split_characters_once(client: Make) -> None:
    who = client({"logprobs": True})
    ids = who.encode("</think> 𓂀!")
    entries = unfolded(who.whole(ids, logprobs={"content": logprobs(ids)}))["logprobs"]
    assert "".join(entry["token"] for entry in entries) == "</think> 𓂀!"
    assert [byte for entry in entries for byte in entry["bytes"]] == list("</think> 𓂀!".encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generate_response": None}, "generate_response"),
        ({"stream": True, "generate_chunk": None}, "generate_chunk"),
        ({"prompt_token_ids": [1] * 5000}, "prompt_token_ids length"),
        ({"prompt_token_ids": [151936]}, "out of vocabulary"),
        ({"prompt_token_ids": "x"}, "list_type"),
        ({"chat_request": None}, "chat_request is required"),
        ({"chat_request": []}, "valid dictionary"),
        ({"chat_request": {"messages": "x"}}, "messages"),
        ({"chat_request": {"messages": [], "tools": []}}, "tools"),
        ({"model": "other"}, "does not exist"),
        ({"stream": 1}, "bool"),
    ],
)
def test_wrong_bodies_are_named(client: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        client().whole([1], more=change)
    assert 400 <= refused.value.status < 500


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"stream": true}', b"[" * 100_000])
def test_bodies_that_are_no_request(client: Make, body: bytes) -> None:
    for call in (client().derenderer.chat, client().derenderer.completions):
        with pytest.raises(BadRequest):
            call(body)


def test_too_many_alternatives_are_refused(client: Make) -> None:
    entry = {"token_id": 1, "logprob": -1.0, "top_logprobs": [{"token_id": 1, "logprob": -1.0}] * 22}
    with pytest.raises(BadRequest, match="max_logprobs"):
        client().whole([1], logprobs={"content": [entry]})


def test_too_many_choices_are_refused(client: Make) -> None:
    response = {"generate_response": {"request_id": "x", "choices": [{"token_ids": [1]}] * 3}}
    with pytest.raises(BadRequest, match="exceeds server maximum"):
        client(max_choices=2).whole([], more=response)
