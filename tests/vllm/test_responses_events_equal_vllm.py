"""Responses derender gives the events that vLLM's own server makes of the same tokens.

Ids, logprobs, sequence numbers and how the text is cut into deltas are not compared. vLLM streams the white
space between reasoning and a call as a message of its own; here there is none, as in whole answers.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tokenizers import Tokenizer

from render_tier.protocol.response_stream import ResponseStream
from tests.support import vllm
from tests.support.processes import ServerProcess
from tests.support.qwen3_answers import CALL, RESPONSES_TOOLS, THINK, call

Json = dict[str, Any]
SCRIPT = Path(__file__).with_name("responses_events.py")
EOS = "<|im_end|>"
OUTPUTS = {
    "answer": THINK + "The answer is 4 — 𓂀.",
    "thought alone": "<think>\nI am still",
    "no thought": "</think>Plain.",
    "call": THINK + CALL,
    "words and calls": THINK + "Sure.\n" + call("f", "{}") + "\n" + call("crm__find", '{"a": 1}'),
    "custom": THINK + call("note", r'{"input": "a \"q\" \u00e9 \ud83d\ude00\n b"}'),
    "custom of another shape": THINK + call("note", '{"text": "a"}'),
    "unknown function": THINK + call("g", '{"a": [1, 2]}'),
}
REQUESTS: dict[str, Json] = {
    "tools": {"tools": RESPONSES_TOOLS},
    "no tools": {},
    "one call": {"tools": RESPONSES_TOOLS, "parallel_tool_calls": False},
}


@pytest.fixture(scope="module")
def tokenizer(qwen3_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))


def cases(tokenizer: Tokenizer) -> dict[tuple[str, str], Json]:
    prompt = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").ids
    return {
        (asked, said): {
            "request": {"input": "hi", **fields},
            "token_ids": tokenizer.encode(text + EOS, add_special_tokens=False).ids,
            "prompt_token_ids": prompt,
        }
        for asked, fields in REQUESTS.items()
        for said, text in OUTPUTS.items()
    }


def ours(client: httpx.Client, case: Json) -> list[Json]:
    reader, state, events = ResponseStream(), None, []
    ids = case["token_ids"]
    for place, token in enumerate(ids):
        choice = {"index": 0, "token_ids": [token], "finish_reason": None}
        if place == len(ids) - 1:
            choice |= {"finish_reason": "stop", "stop_reason": token}
        body = {
            "stream": True,
            "generate_chunk": {"request_id": "resp_1", "choices": [choice]},
            "stream_state": state,
            "responses_request": case["request"],
            "prompt_token_ids": case["prompt_token_ids"],
        }
        answer = client.post("/v1/responses/derender", json=body).raise_for_status().json()
        state = answer["stream_state"]
        events += [json.loads(reader.add(msgspec.json.encode(event))[1]) for event in answer["events"]]
    assert reader.ended
    return events[2:-1]


def comparable(events: list[Json]) -> list[Json]:
    """Without what is made up, what says nothing, and the cuts between deltas."""
    made: list[Json] = []
    for event in events:
        bare = _bare(event)
        if made and made[-1]["type"] == bare["type"] and "delta" in bare:
            made[-1]["delta"] += bare["delta"]
        else:
            made.append(bare)
    return made


def without_blank_messages(events: list[Json]) -> list[Json]:
    blank = {
        event["output_index"]
        for event in events
        if event["type"] == "response.output_text.done" and not event["text"].strip()
    }
    return [
        {**event, "output_index": place - sum(other < place for other in blank)}
        for event in events
        if (place := event["output_index"]) not in blank
    ]


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = ("id", "item_id", "call_id", "sequence_number", "logprobs")
        return {k: _bare(v) for k, v in value.items() if k not in dropped and v not in (None, [])}
    return [_bare(each) for each in value] if isinstance(value, list) else value


def test_events_are_those_of_vllm(qwen3_dir: Path, tokenizer: Tokenizer, render_tier: ServerProcess) -> None:
    asked = cases(tokenizer)
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", SCRIPT, qwen3_dir],
        input="".join(json.dumps(case) + "\n" for case in asked.values()),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    wrong = {}
    with httpx.Client(base_url=render_tier.url, timeout=60, trust_env=False) as client:
        for name, line in zip(asked, done.stdout.splitlines(), strict=True):
            mine = comparable(ours(client, asked[name]))
            theirs = comparable(without_blank_messages(json.loads(line)))
            if mine != theirs:
                wrong[name] = (mine, theirs)
    assert not wrong, f"{list(wrong)} differ, the first: {next(iter(wrong.values()))}"
