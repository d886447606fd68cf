"""Our result against vLLM's own on generated outputs: every difference has a rule with a reason."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.families import ours
from tests.families.generators import GeneratedOutput, generate
from tests.vllm.parsers.known_differences import Comparison, meant, unexplained
from tests.vllm.parsers.runner import VllmRunner

pytestmark = pytest.mark.vllm

OFFERED = (
    "hermes_qwen3",
    "qwen3_coder",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v31",
    "deepseek_r1",
    "glm47",
    "kimi_k2",
    "minimax_m2",
    "nemotron_v3",
    "step3p5",
    "mimo",
    "qwq",
    "qwen_coder_plain",
    "openai_gptoss",
    "mistral",
    "gemma4",
    "llama3_json",
    "llama4_pythonic",
    "seed_oss",
)
"""Families (of `tests.families.catalogue`) that are compared: CONTRACT's first twelve places, and kin."""
OUTPUTS = 500
SHOWN = 5


def describe(comparison: Comparison, fields: frozenset[str], used: list[str]) -> str:
    output = comparison.output
    return (
        f"{output.family} seed {output.seed}, damage {output.damage}, tool_choice {output.tool_choice}, "
        f"prompt {output.opening.tail!r} {output.opening.kwargs}: {sorted(fields)} {used}\n"
        f"  text {output.text!r}\n  vllm {comparison.vllm}\n  ours {comparison.ours}"
    )


@pytest.mark.parametrize("family", OFFERED)
def test_every_difference_from_the_batch_result_has_a_reason(vllm_parsers: VllmRunner, family: str) -> None:
    outputs: list[GeneratedOutput] = [generate(family, seed) for seed in range(OUTPUTS)]
    results = vllm_parsers.batch(output.case() for output in outputs)
    problems: list[tuple[int, str]] = []
    explained: Counter[str] = Counter()
    same = 0
    for output, result in zip(outputs, results, strict=True):
        assert "exception" not in result, (output, result)
        comparison = Comparison(output, result, ours.parse_whole(output.case()))
        if wrong := meant(comparison):
            problems.append((len(output.text), describe(comparison, frozenset(wrong), ["not as meant"])))
        if not comparison.differing:
            same += 1
            continue
        fields, used = unexplained(comparison)
        explained.update(used)
        if fields:
            problems.append((len(output.text), describe(comparison, fields, used)))
    print(f"{family}: {same} of {OUTPUTS} the same; explained: {dict(explained)}")
    shown = "\n\n".join(text for _, text in sorted(problems)[:SHOWN])
    assert not problems, f"{len(problems)} outputs differ without a reason; the shortest:\n{shown}"
    assert same > OUTPUTS // 2, "most outputs must agree, or the comparison says nothing"
