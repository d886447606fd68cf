"""Every recorded output of the Qwen3 + hermes family, whole, token by token, and in sampled chunkings."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from render_tier.core.formats import PLAIN, prompt_reasoning, reasoning_format, tool_format
from render_tier.core.grammar import Grammar
from render_tier.core.machine import Machine, MachineOptions
from render_tier.core.vocabulary import Vocabulary, build_vocabulary
from tests.support.collected import Collected
from tests.support.corpus import parser_cases

CASES = parser_cases("hermes_qwen3")
SAMPLED = 12

OURS: dict[str, dict[str, Any]] = {
    # A cut call: what came of it is passed on, whole as streamed; the recording has it as content when whole.
    "hermes_qwen3/truncated_mid_arguments": {
        "reasoning": "\nok\n",
        "content": None,
        "tool_calls": [
            {"name": "save_snippet", "arguments_text": '{"title": "cut", "body": "this never en', "cut": True}
        ],
    },
}
"""Cases that we answer differently on purpose (class "diverges" of the corpus); the policy is in
docs/parsers.md."""


@pytest.fixture(scope="module")
def tokenizer(qwen3_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def vocabulary(qwen3_dir: Path) -> Vocabulary:
    return build_vocabulary(json.loads((qwen3_dir / "tokenizer.json").read_text(encoding="utf-8")))


def chunkings(length: int, seed: str) -> list[list[int]]:
    """Cut positions: none, all, and sampled ones, some with empty chunks."""
    rng = random.Random(seed)
    sampled = [sorted(rng.choices(range(length + 1), k=rng.randrange(1, 12))) for _ in range(SAMPLED)]
    return [[], list(range(length + 1)), *sampled]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"].partition("/")[2])
def test_case_in_every_chunking(case: dict[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    names = case["format"]
    reasoning = reasoning_format(names["reasoning_parser"]) if names["reasoning_parser"] else None
    active = bool(case["tools"]) and case["tool_choice"] != "none"
    grammar = Grammar(reasoning, tool_format(names["tool_parser"]) if active else PLAIN, vocabulary)
    prompt_ids = tokenizer.encode(case["prompt_tail"], add_special_tokens=False).ids
    prompt = prompt_reasoning(reasoning, prompt_ids, vocabulary) if reasoning else None
    ids = tokenizer.encode(case["output_text"], add_special_tokens=False).ids
    expected = OURS.get(case["id"], case["expected"])
    for cuts in chunkings(len(ids), case["id"]):
        machine = Machine(grammar, MachineOptions(), prompt)
        got = Collected()
        for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            got.add(machine.feed(ids[start:end]))
            machine = Machine.restore(grammar, MachineOptions(), machine.snapshot())
        got.add(machine.finish())
        compare(got, expected)
        assert len(got.regions) == len(ids)


def compare(got: Collected, expected: dict[str, Any]) -> None:
    assert got.reasoning == (expected["reasoning"] or "")
    assert got.content == (expected["content"] or "")
    assert [call.name for call in got.calls] == [call["name"] for call in expected["tool_calls"]]
    for call, wanted in zip(got.calls, expected["tool_calls"], strict=True):
        if wanted.get("cut"):
            assert (call.arguments, call.complete) == (wanted["arguments_text"], False)
        else:
            assert call.complete
            assert json.loads(call.arguments) == wanted["arguments"]


def test_every_difference_is_of_the_class_where_one_must_be_chosen() -> None:
    classes = {case["id"]: case["stream_class"] for case in CASES}
    assert {classes[name] for name in OURS} == {"diverges"}
