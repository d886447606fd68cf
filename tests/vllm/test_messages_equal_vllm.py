"""Messages derender says what vLLM's own Messages endpoint makes of the same tokens, whole and in events.

vLLM's converters read chat answers; they are given ours, whose equality with vLLM's is another test's.
Ids, signatures and how text is cut into deltas are not compared. Where vLLM's stream of an empty answer has
no block, ours has the one empty text that whole answers have. vLLM does not count thinking, and fails on a
call that was cut.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.support import vllm
from tests.support.messages_stream import read, with_input
from tests.support.processes import ServerProcess
from tests.support.qwen3_answers import THINK, call

Json = dict[str, Any]
SCRIPT = Path(__file__).with_name("messages_events.py")
EOS = "<|im_end|>"

OUTPUTS: dict[str, tuple[str, str, int | str | None]] = {
    "answer": (THINK + "The answer is 4 — 𓂀.", "stop", None),
    "answer cut": (THINK + "The answer", "length", None),
    "thought alone": ("<think>\nI am still", "length", None),
    "no thought": ("</think>Plain.", "stop", None),
    "call": (THINK + call(arguments='{"x": "a 𓂀 b", "y": [1, 2.50]}'), "stop", None),
    "words and calls": (
        THINK + "Sure.\n" + call(arguments="{}") + "\n" + call(arguments='{"a": 1}'),
        "stop",
        None,
    ),
    "stop sequence": (THINK + "Yes, STOP", "stop", "STOP"),
    "call before a stop sequence": (THINK + call(arguments='{"a": 1}') + " STOP", "stop", "STOP"),
    "aborted": (THINK + "The answer", "abort", None),
    "nothing": ("<think></think>", "stop", None),
}
"""Output, finish reason, stop string of the engine."""
REQUESTS: dict[str, Json] = {
    "tools": {"tools": [{"name": "f", "input_schema": {"properties": {}}}]},
    "no tools": {},
    "one call": {
        "tools": [{"name": "f", "input_schema": {"properties": {}}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
}
CHAT_FIELDS: dict[str, Json] = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    "no tools": {},
}
CHAT_FIELDS["one call"] = CHAT_FIELDS["tools"] | {"parallel_tool_calls": False}
USAGE = {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 32}}


class Case:
    """One output, asked for in both APIs."""

    def __init__(self, tokenizer: Tokenizer, client: httpx.Client, asked: str, said: str) -> None:
        text, self.finish, self.stop = OUTPUTS[said]
        ends = self.finish == "stop" and self.stop is None
        self.ids: list[int] = tokenizer.encode(text + EOS * ends, add_special_tokens=False).ids
        self.prompt = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").ids
        messages = [{"role": "user", "content": "hi"}]
        stops = ["STOP"]
        self.chat = {"messages": messages, "stop": stops, **CHAT_FIELDS[asked]}
        self.request = {"model": "qwen3", "max_tokens": 99, "messages": messages, "stop_sequences": stops}
        self.request |= REQUESTS[asked]
        self.client = client

    def usage(self, count: int) -> Json:
        return USAGE | {"completion_tokens": count, "total_tokens": count + 50}

    def choice(self, ids: list[int], last: bool) -> Json:
        end = {"finish_reason": self.finish, "stop_reason": self.stop} if last else {}
        return {"index": 0, "token_ids": ids, **end}

    def post(self, path: str, field: str, body: Json) -> Any:
        request = self.chat if field == "chat_request" else self.request
        body |= {field: request, "prompt_token_ids": self.prompt, "prompt_tokens": 50}
        return self.client.post(path, json=body).raise_for_status().json()

    def whole(self, path: str, field: str) -> Any:
        response = {"request_id": "x", "choices": [self.choice(self.ids, True)], "usage": self.usage(9)}
        return self.post(path, field, {"generate_response": response})

    def stream(self, path: str, field: str) -> list[Any]:
        answers: list[Any] = []
        for place, token in enumerate(self.ids, 1):
            chunk = {"request_id": "x", "choices": [self.choice([token], place == len(self.ids))]}
            body = {"stream": True, "generate_chunk": chunk | {"usage": self.usage(place)}}
            body["stream_state"] = answers[-1]["stream_state"] if answers else None
            answers.append(self.post(path, field, body))
        return answers

    def for_vllm(self) -> Json:
        path = "/v1/chat/completions/derender"
        chunks = [answer["chunk"] for answer in self.stream(path, "chat_request")]
        # vLLM's server begins with a chunk of the role alone, and ends with one of usage alone.
        [first] = chunks[0]["choices"]
        begun = {**first, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        opening = {**chunks[0], "choices": [begun], "usage": self.usage(0)}
        ending = {**chunks[-1], "choices": []}
        return {"chunks": [opening, *chunks, ending], "whole": self.whole(path, "chat_request")}


def comparable(message: Json) -> Json:
    blocks = [
        {name: value for name, value in block.items() if name not in ("id", "signature")}
        for block in message["content"]
    ]
    usage = {name: value for name, value in message["usage"].items() if name != "output_tokens_details"}
    kept = {name: message.get(name) for name in ("type", "role", "model", "stop_reason", "stop_sequence")}
    return {**kept, "content": blocks, "usage": usage}


def repaired(events: list[Json]) -> list[Json]:
    """vLLM's events by the rules of `tests.support.messages_stream`: a block of thinking begins without
    signature there, and an answer without output has no block."""
    fixed = []
    for event in events:
        block = event.get("content_block", {})
        if block.get("type") == "thinking":
            event = {**event, "content_block": {"signature": "", **block}}
        if event["type"] == "message_delta" and not any(e["type"] == "content_block_start" for e in fixed):
            empty = {"type": "text", "text": ""}
            fixed += [
                {"type": "content_block_start", "index": 0, "content_block": empty},
                {"type": "content_block_stop", "index": 0},
            ]
        fixed.append(event)
    return fixed


@pytest.fixture(scope="module")
def tokenizer(qwen3_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))


def test_messages_are_those_of_vllm(tokenizer: Tokenizer, render_tier: ServerProcess) -> None:
    path, field = "/v1/messages/derender", "messages_request"
    with httpx.Client(base_url=render_tier.url, timeout=60, trust_env=False) as client:
        cases = {
            (asked, said): Case(tokenizer, client, asked, said) for asked in REQUESTS for said in OUTPUTS
        }
        done = subprocess.run(
            [vllm.environment() / "bin" / "python", SCRIPT],
            input="".join(json.dumps(case.for_vllm()) + "\n" for case in cases.values()),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        wrong = {}
        for (name, case), line in zip(cases.items(), done.stdout.splitlines(), strict=True):
            theirs = json.loads(line)
            events = [event for answer in case.stream(path, field) for event in answer["events"]]
            pairs = (
                (case.whole(path, field), theirs["message"]),
                (with_input(read(events)), with_input(read(repaired(theirs["events"])))),
            )
            for way, (mine, other) in zip(("whole", "stream"), pairs, strict=True):
                if comparable(mine) != comparable(other):
                    wrong[(*name, way)] = (comparable(mine), comparable(other))
    assert not wrong, f"{list(wrong)} differ, the first: {next(iter(wrong.values()))}"
