"""Every recorded output of every family with a table: whole, token by token, and in sampled chunkings."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from render_tier.core.machine import Machine
from tests.conformance.our_answers import (
    ANSWERS,
    OPEN_CALLS,
    STREAMED,
    Answer,
    TextKept,
    whitespace_before_a_call,
)
from tests.families import ours
from tests.families.generators import same_json
from tests.families.tokenization import tokenizer_of
from tests.support.collected import Collected
from tests.support.corpus import parser_cases

CASES = [
    *parser_cases("deepseek_r1"),
    *parser_cases("deepseek_v3"),
    *parser_cases("deepseek_v31"),
    *parser_cases("deepseek_v32"),
    *parser_cases("deepseek_v4"),
    *parser_cases("functiongemma"),
    *parser_cases("gemma4"),
    *parser_cases("glm47"),
    *parser_cases("granite"),
    *parser_cases("kimi_k2"),
    *parser_cases("llama3_json"),
    *parser_cases("llama4_pythonic"),
    *parser_cases("minimax_m2"),
    *parser_cases("mistral"),
    *parser_cases("nemotron_v3"),
    *parser_cases("openai_gptoss"),
    *parser_cases("phi4_mini_json"),
    *parser_cases("pythonic"),
    *parser_cases("qwen3_coder"),
    *parser_cases("seed_oss"),
    *parser_cases("step3p5"),
]
SAMPLED = 12


def chunkings(length: int, seed: str) -> list[list[int]]:
    """Edges of chunks: one chunk, a token each, and sampled ones of up to 12 chunks, empty ones among
    them.
    """
    rng = random.Random(seed)
    cuts = [sorted(rng.choices(range(length + 1), k=rng.randrange(1, 12))) for _ in range(SAMPLED)]
    return [[0, length], list(range(length + 1)), *([0, *each, length] for each in cuts)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_in_every_chunking(case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(case)
    ids = tokenizer.encode(case["output_text"])
    grammar, options = ours.grammar_of_case(case, tokenizer), ours.options_of(case)
    for edges in chunkings(len(ids), case["id"]):
        machine = ours.machine_of(case, tokenizer)
        got = Collected()
        for start, end in pairwise(edges):
            machine = Machine.restore(grammar, options, machine.snapshot())
            got.add(machine.feed(ids[start:end]))
        got.add(machine.finish())
        assert len(got.regions) == len(ids)
        compare(case, got)


def compare(case: dict[str, Any], got: Collected) -> None:
    expected = case["expected"]
    answer = ANSWERS.get(case["id"])
    reasoning, content, calls = expected["reasoning"] or "", expected["content"] or "", None
    if isinstance(answer, TextKept):
        content = case["output_text"].partition(answer.after)[2]
    elif answer is not None:
        reasoning = reasoning if answer.reasoning is None else answer.reasoning
        content, calls = content if answer.content is None else answer.content, answer.calls
    assert got.reasoning == reasoning
    assert got.content == content or whitespace_before_a_call(case, got.content, content)
    if calls is not None:
        assert [(call.name, call.arguments, call.complete) for call in got.calls] == list(calls)
    else:
        recorded = expected["tool_calls"]
        assert [call.name for call in got.calls] == [call["name"] for call in recorded]
        for call, wanted in zip(got.calls, recorded, strict=True):
            text = wanted.get("arguments_text")
            if wanted["arguments"] is None and text not in (None, "null"):  # cut, or no JSON
                assert (call.arguments, call.complete) == (text, False)
                continue
            assert call.complete or case["id"] in OPEN_CALLS
            assert same_json(json.loads(call.arguments), wanted["arguments"])
    if answer is None:
        message = ours.ParsedMessage(calls=[ours.ParsedCall(call.name) for call in got.calls])
        assert ours.finish_reason(case, message) == expected["finish_reason"]


def test_our_own_answers_are_of_classes_where_one_must_be_chosen() -> None:
    """What the corpus calls settled (class "same", not disputed) has no answer of our own."""
    cases = {case["id"]: case for case in CASES}
    assert ANSWERS.keys() <= cases.keys()
    for name, answer in ANSWERS.items():
        case = cases[name]
        assert case["stream_class"] == "diverges" or case.get("disputed") or answer.why in STREAMED, name
        if isinstance(answer, Answer):
            assert (answer.reasoning, answer.content, answer.calls) != (None, None, None)
