"""Every token counts once, and ids of calls are the same however often a chunk is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.families.tokenization import tokenizer_of
from tests.render_tier.derendering.conftest import TOOLS, Client, Served, folded, unfolded
from tests.support.corpus import parser_cases

Make = Callable[..., Client]

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TEXT = "<think>\nSo é.\n</think>\n\nSure, 𓂀. " + CALL + CALL + "<|im_end|>"


def entries(ids: list[int]) -> list[dict[str, Any]]:
    return [{"token_id": i, "logprob": -0.5, "top_logprobs": []} for i in ids]


def call_ids(answers: list[Any]) -> list[str]:
    return [call["id"] for call in folded(answers)["message"]["tool_calls"]]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_ids_logprobs_and_usage_count_every_token_once(client: Make, size: int) -> None:
    who = client({"tools": TOOLS, "logprobs": True, "return_token_ids": True})
    ids = who.encode(TEXT)
    answers = who.stream([ids[at : at + size] for at in range(0, len(ids), size)], logprobs=entries(ids))
    seen = folded(answers)
    assert seen["token_ids"] == ids
    assert len(seen["logprobs"]) == len(ids) == answers[-1]["derender"]["completion_tokens"]
    whole = who.whole(ids, logprobs={"content": entries(ids)})
    assert seen == unfolded(whole)
    assert whole["usage"]["completion_tokens"] == len(ids)
    reasoning = answers[-1]["derender"]["reasoning_tokens"]
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoning}
    assert 0 < reasoning < len(ids)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_after_a_stop_string_nothing_counts(client: Make, size: int) -> None:
    who = client({"stop": ["Sure,"], "logprobs": True, "return_token_ids": True})
    ids = who.encode(TEXT)
    answers: list[Any] = []
    state = None
    for at in range(0, len(ids), size):
        piece = ids[at : at + size]
        answers.append(who.chunk(piece, state, logprobs={"content": entries(piece)}))
        state = answers[-1]["stream_state"]
    read = len(who.encode(TEXT[: TEXT.index("Sure,") + 5]))
    seen = folded(answers)
    assert seen["finish"] == [("stop", "Sure,")]
    assert seen["token_ids"] == ids[:read]
    assert len(seen["logprobs"]) == answers[-1]["derender"]["completion_tokens"] == read
    # An engine that has not heard of the stop counts on.
    usage = {"prompt_tokens": 3, "completion_tokens": len(ids), "total_tokens": 3 + len(ids)}
    last = {"generate_chunk": {"request_id": who.request_id, "choices": [], "usage": usage}}
    assert who.chunk([], state, more=last)["chunk"]["usage"]["completion_tokens"] == read


def test_call_ids_are_stable_over_retries_and_replicas_and_never_shared(client: Make) -> None:
    who, replica = client({"tools": TOOLS}), client({"tools": TOOLS})
    ids = who.encode(TEXT)
    pieces = [[i] for i in ids]
    first = call_ids(who.stream(pieces))
    assert len(set(first)) == 2
    assert call_ids(who.stream(pieces)) == call_ids(replica.stream(pieces)) == first
    assert [call["id"] for call in unfolded(who.whole(ids))["message"]["tool_calls"]] == first
    # Every chunk asked for twice, on two replicas in turn.
    state, answers = None, []
    for number, piece in enumerate(pieces):
        finish = "stop" if number == len(pieces) - 1 else None
        again = [server.chunk(piece, state, finish) for server in (who, replica, who)]
        assert again[0] == again[1] == again[2]
        answers.append(again[0])
        state = again[0]["stream_state"]
    assert call_ids(answers) == first
    others = [
        dataclasses.replace(who, request_id="chatcmpl-2"),
        dataclasses.replace(who, request={**who.request, "messages": [{"role": "user", "content": "other"}]}),
    ]
    for other in others:
        assert not set(call_ids(other.stream(pieces))) & set(first)
    second_choice = who.whole(ids, index=1)
    assert not {call["id"] for call in unfolded(second_choice)["message"]["tool_calls"]} & set(first)


def test_ids_that_the_model_writes_are_kept_and_count_the_history(client: Make, served: Served) -> None:
    """Kimi numbers its calls over the whole conversation, of which the client may have left out the start."""
    case = parser_cases("kimi_k2")[0]
    tokenizer = tokenizer_of(case)
    model = dataclasses.replace(served, vocabulary=tokenizer.vocabulary, vocab_size=1 << 20)
    written = ("functions.f:7", "functions.f:8")
    calls = "".join(
        f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{{}}<|tool_call_end|>" for name in written
    )
    ids = tokenizer.encode(f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
    call = {"id": "functions.f:6", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]
    request = {"tools": TOOLS, "messages": history}
    who = client(request, model=model, reasoning_parser=None, tool_parser="kimi_k2")
    assert [call["id"] for call in unfolded(who.whole(ids))["message"]["tool_calls"]] == list(written)
    for size in (1, 5):
        pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
        assert call_ids(who.stream(pieces)) == list(written)
