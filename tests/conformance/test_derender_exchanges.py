"""Every recorded derender exchange replays with equal results, or differs in a listed way for a stated
reason."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from render_tier.core.vocabulary import Vocabulary, build_vocabulary
from render_tier.derendering import Derenderer, DerenderSettings
from render_tier.protocol.errors import ApiError
from tests.support.corpus import exchanges

Body = dict[str, Any]


@dataclass
class Served:
    served_names: tuple[str, ...]
    vocabulary: Vocabulary
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    fingerprint: str = "recorded"


def served(name: str, directory: Path, vocab_size: int, length: int, eos: tuple[int, ...]) -> Served:
    data = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return Served((name,), build_vocabulary(data), vocab_size, length, eos)


@pytest.fixture(scope="module")
def derenderers(qwen3_dir: Path, llama3_1_dir: Path) -> dict[str, Derenderer]:
    """One for each server that was recorded: Qwen3 with parsers, Llama 3.1 without."""
    qwen3 = served("qwen3", qwen3_dir, 151936, 40960, (151645, 151643))
    llama = served("llama", llama3_1_dir, 128256, 131072, (128009, 128001, 128008))
    parsers = DerenderSettings(reasoning_parser="qwen3", tool_parser="hermes")
    return {
        "qwen3": Derenderer(qwen3, parsers, clock=lambda: 7.0),
        "llama": Derenderer(llama, DerenderSettings(), clock=lambda: 7.0),
    }


def model_of(exchange: Body) -> str:
    body = exchange["response"]["body"]
    return body.get("model") or body.get("chunk", {}).get("model") or "qwen3"


def recorded() -> Iterator[Any]:
    for exchange in (*exchanges("derender_whole"), *exchanges("derender_stream")):
        # gpt-oss needs the Harmony table, which is another family's test.
        if exchange["request"]["path"].endswith("/derender") and model_of(exchange) != "gptoss":
            yield pytest.param(exchange, id=exchange["id"].replace("derender_", ""))


# --- what we answer instead, by name of the rule (CONTRACT section 13) ---


def tool_finish(body: Body) -> None:
    """S3: a call that the model ended itself finishes with tool_calls when whole, too."""
    body["choices"][0]["finish_reason"] = "tool_calls"


def no_stop_token(body: Body) -> None:
    """S2: the stop token has no text."""
    for choice in body.get("choices") or body["chunk"]["choices"]:
        for holder, key in (
            (choice, "text"),
            (choice.get("message", {}), "content"),
            (choice.get("delta", {}), "content"),
        ):
            if holder.get(key) is not None:
                holder[key] = holder[key].removesuffix("<|im_end|>").removesuffix("<|eot_id|>") or None


def cut_call(body: Body) -> None:
    """S10: a call cut by length is a call with the arguments that came, as when streamed."""
    message = body["choices"][0]["message"]
    message["content"] = None
    function = {"name": "get_weather", "arguments": '{"city": "Par'}
    message["tool_calls"] = [{"id": "", "type": "function", "function": function}]


def stop_cut(body: Body) -> None:
    """S5: the stop string is cut from the text."""
    body["choices"][0]["message"]["content"] = "abc "


def hidden_logprobs(body: Body) -> None:
    """S10: no logprobs of hidden reasoning, nor of markers and the stop token."""
    logprobs = body["choices"][0]["logprobs"]
    logprobs["content"] = logprobs["content"][5:-1]


def streamed_logprobs(body: Body) -> None:
    """S10, row 62: logprobs are not lost in a stream with parsers."""
    tokens = ["x", '"}}\n', "</tool_call>", "<|im_end|>"]
    body["chunk"]["choices"][0]["logprobs"] = {
        "content": [
            {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}
            for token in tokens
        ]
    }


def blanks_wait(body: Body) -> None:
    """White space alone waits for what follows: it is not content when that is a call."""
    body["chunk"]["choices"][0]["delta"]["content"] = None


def name_waits(body: Body) -> None:
    """The name goes out once the arguments have begun: an object without arguments is no call."""
    del body["chunk"]["choices"][0]["delta"]["tool_calls"]


def space_at_once(body: Body) -> None:
    """The space before an unfinished character is shown when it comes, not with the character."""
    body["chunk"]["choices"][0]["delta"]["content"] = " "


def prompt_ids(body: Body) -> None:
    """D8: prompt IDs are passed on when token IDs are asked for."""
    body["prompt_token_ids"] = "<given>"


Rule = Callable[[Body], None]

DIFFERENT: dict[str, list[Rule]] = {
    "batch_tool": [tool_finish],
    "batch_tool_no_eos": [tool_finish],
    "batch_two_tools": [tool_finish],
    "batch_tool_unfinished": [cut_call],
    "batch_nothink_template_prefilled": [no_stop_token],
    "batch_include_reasoning_false": [tool_finish],
    "batch_required": [tool_finish],
    "batch_return_token_ids": [tool_finish],
    "batch_logprobs": [tool_finish],
    "batch_multi_choice": [tool_finish],
    "batch_full_gen": [tool_finish, prompt_ids],
    "extra_fields": [tool_finish],
    "cmpl_batch_keep_special": [no_stop_token],
    "lp_leak": [hidden_logprobs],
    "leak_chunk2_6": [no_stop_token],
    "leak_chunk3_4": [no_stop_token],
    "leak_chunk5_2": [no_stop_token],
    "leak_chunk8_1": [no_stop_token],
    "think_answer_tools_5": [blanks_wait],
    "think_answer_tools_12": [no_stop_token],
    "nothink_3": [no_stop_token],
    "nothink_tool_9": [name_waits],
    "lp_15": [streamed_logprobs],
    "plain_nochat_4": [space_at_once],
    "plain_nochat_5": [space_at_once],
    "batch_plain_keepspecial": [no_stop_token],
    "batch_plain_stop": [stop_cut],
}

STATUS: dict[str, tuple[int, str]] = {
    "err_empty_ids": (200, "S14: a choice without tokens is an empty message"),
    "err_null_ids": (200, "S14"),
    "cmpl_null_ids": (200, "S14"),
    "state_bigint": (400, "S15: IDs are range-checked"),
    "state_neg": (400, "S15"),
    "chunk_bigint": (400, "S15"),
    "batch_int_overflow": (400, "S15"),
    "lp_oov": (400, "S15"),
}


@pytest.mark.parametrize("exchange", list(recorded()))
def test_exchange(exchange: Body, derenderers: dict[str, Derenderer]) -> None:
    derenderer = derenderers[model_of(exchange)]
    path, sent = exchange["request"]["path"], exchange["request"]["body"]
    call = derenderer.chat if "/chat/" in path else derenderer.completions
    try:
        status, got = 200, json.loads(call(json.dumps(sent).encode()))
    except ApiError as error:
        status, got = error.status, json.loads(error.encode())
    name, wanted = exchange["name"], copy.deepcopy(exchange["response"]["body"])
    if name in STATUS:
        expected_status, _reason = STATUS[name]
        assert (status, exchange["response"]["status"]) == (expected_status, 600 - expected_status)
        return
    assert status == exchange["response"]["status"]
    if status != 200:
        # The messages of wrong shapes are another library's; kind and status are the contract.
        assert got["error"]["type"] == wanted["error"]["type"]
        if wanted["error"]["type"] != "Bad Request":
            assert got == wanted
        return
    before = comparable(wanted)
    for rule in DIFFERENT.get(name, []):
        rule(wanted)
    assert name not in DIFFERENT or comparable(wanted) != before, "a listed difference must be one"
    complete_usage(wanted, got, sent)
    assert comparable(got) == comparable(wanted)


def complete_usage(wanted: Body, got: Body, sent: Body) -> None:
    """S11: the recorded usage lacks the prompt's count when only IDs are sent, and all details. What ours
    says there is checked against what was sent; reasoning tokens have tests of their own."""
    response = wanted.get("chunk", wanted)
    usage, ours = response.get("usage"), (got.get("chunk", got)).get("usage")
    if usage is None:
        return
    ids = sent.get("prompt_token_ids") or []
    if usage["prompt_tokens"] == 0:
        usage["prompt_tokens"] = (
            sum(map(len, filter(None, ids))) if ids and not isinstance(ids[0], int) else len(ids)
        )
        usage["total_tokens"] += usage["prompt_tokens"]
    engine = (sent.get("generate_chunk") or sent.get("generate_response") or {}).get("usage") or {}
    usage["prompt_tokens_details"] = engine.get("prompt_tokens_details")
    usage["completion_tokens_details"] = ours["completion_tokens_details"]
    if model_of({"response": {"body": wanted}}) == "llama" or response["object"] == "text_completion":
        assert ours["completion_tokens_details"] is None
    else:
        assert 0 <= ours["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"]


def comparable(body: Body) -> Body:
    """Without clocks and random ids, and without the state, whose form is our own."""
    body = copy.deepcopy(
        {key: value for key, value in body.items() if key not in ("stream_state", "derender")}
    )
    response = body.get("chunk", body)
    response["created"] = 0
    if response.get("prompt_token_ids") is not None:
        response["prompt_token_ids"] = "<given>"
    for choice in response["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or []:
            if call["id"] is not None:
                call["id"] = "<id>"
            # Only the first delta of a call has a type; a null in others undoes it in the `openai` client.
            if call.get("type", "") is None:
                del call["type"]
    return body


def test_every_listed_difference_is_in_the_recordings() -> None:
    names = {param.values[0]["name"] for param in recorded()}
    assert names >= DIFFERENT.keys() | STATUS.keys()
