"""The runner gives what the corpus recorded: its answers may stand for vLLM's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import corpus
from tests.vllm.parsers.runner import VllmRunner

pytestmark = pytest.mark.vllm

FILES = sorted(path.stem for path in (corpus.DATA / "parsers").glob("*.jsonl"))
CHUNKINGS: dict[str, int | list[int]] = {"1_token": 1, "3_tokens": 3, "one_chunk": 0}


def read(family: str) -> list[dict[str, Any]]:
    path = Path(corpus.DATA / "parsers" / f"{family}.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def value(arguments: str) -> tuple[str, Any]:
    try:
        return "json", json.loads(arguments)
    except ValueError:
        return "text", arguments


def calls(message: dict[str, Any]) -> list[tuple[str, tuple[str, Any]]]:
    return [(call["name"], value(call["arguments"])) for call in message["tool_calls"]]


def recorded_calls(message: dict[str, Any]) -> list[tuple[str, tuple[str, Any]]]:
    return [
        (
            call["name"],
            value(call["arguments_text"]) if "arguments_text" in call else ("json", call["arguments"]),
        )
        for call in message["tool_calls"]
    ]


@pytest.mark.parametrize("family", FILES)
def test_batch_result_is_the_recorded_one(vllm_parsers: VllmRunner, family: str) -> None:
    cases = read(family)
    for case, got in zip(cases, vllm_parsers.batch(cases), strict=True):
        want = case["expected"] if case["source"] == "vllm-batch" else case["vllm_batch"]
        assert "exception" not in got, (case["id"], got)
        assert {k: got[k] for k in ("reasoning", "content", "finish_reason")} == {
            k: want[k] for k in ("reasoning", "content", "finish_reason")
        }, case["id"]
        assert calls(got) == recorded_calls(want), case["id"]


@pytest.mark.parametrize("family", FILES)
def test_streams_agree_with_batch_exactly_where_recorded(vllm_parsers: VllmRunner, family: str) -> None:
    cases = read(family)
    requests = ({"case": case, "streams": list(CHUNKINGS.values())} for case in cases)
    for case, reply in zip(cases, vllm_parsers.ask_all(requests), strict=True):
        batch = reply["batch"]
        for name, stream in zip(CHUNKINGS, reply["streams"], strict=True):
            recorded = case["vllm_streaming"][name]
            if isinstance(recorded, str):
                continue  # an exception was recorded; its text is not compared
            same = "exception" not in stream and (
                stream["reasoning"] == (batch["reasoning"] or "")
                and stream["content"] == (batch["content"] or "")
                and stream["finish_reason"] == batch["finish_reason"]
                and calls(stream) == calls(batch)
            )
            if recorded:
                assert same, (case["id"], name, stream, batch)
