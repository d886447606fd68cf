"""Kimi K2 writes IDs of calls, ``functions.NAME:N``, where N counts the calls of the conversation."""

from __future__ import annotations

from typing import Any

import pytest

from render_tier.derendering import Derenderer, DerenderSettings
from tests.families.tokenization import load
from tests.render_tier.derendering.conftest import TOOLS, Client, Served, folded, unfolded

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"functions.f:{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for n in range(2)
        ],
    },
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "a"},
    {"role": "tool", "tool_call_id": "functions.f:1", "content": "b"},
]


def client(messages: list[dict[str, Any]], **fields: Any) -> Client:
    markers = (BEGIN, END, CALL, ARGUMENTS, CALL_END)
    tokenizer = load("qwen3", markers)
    vocabulary = tokenizer.vocabulary
    served = Served(vocabulary, vocab_size=vocabulary.size)
    settings = DerenderSettings(reasoning_parser="kimi_k2", tool_parser="kimi_k2")
    request = {"messages": messages, "tools": TOOLS, **fields}
    return Client(Derenderer(served, settings), tokenizer.encode, tokenizer.encode("hi"), request)


def answer(*headers: str) -> str:
    calls = [f"{CALL}{header}{ARGUMENTS}{{}}{CALL_END}" for header in headers]
    return f"</think>Hm.{BEGIN}{''.join(calls)}{END}"


@pytest.mark.parametrize(
    "headers",
    [
        ("functions.f:2", "functions.g:3"),
        ("functions.f:0", "functions.g:0"),  # a model that begins anew: IDs of the history again
        ("functions.f", "g"),
        ("f:7", "functions.g:7"),
    ],
)
def test_the_number_goes_on_from_the_history_whole_and_by_the_token(headers: tuple[str, str]) -> None:
    who = client(HISTORY)
    ids = who.encode(answer(*headers))
    whole = unfolded(who.whole(ids))
    calls = whole["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["functions.f:2", "functions.g:3"]
    assert [call["name"] for call in calls] == ["f", "g"]
    for size in (1, 3, len(ids)):
        pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
        assert folded(who.stream(pieces)) == whole


def test_it_counts_from_zero_without_a_history() -> None:
    who = client(HISTORY[:1])
    ids = who.encode(answer("functions.f:0", "functions.f:1"))
    calls = unfolded(who.whole(ids))["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["functions.f:0", "functions.f:1"]


def test_a_repeated_chunk_gives_the_same_id() -> None:
    who = client(HISTORY)
    ids = who.encode(answer("functions.f:2"))
    state = who.chunk(ids[:-4])["stream_state"]
    assert who.chunk(ids[-4:], state, "stop") == who.chunk(ids[-4:], state, "stop")
