"""The generators give what they promise: reproducible, varied outputs of every family."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.families import damage
from tests.families.generators import FAMILIES, TOP_TWELVE, Knobs, generate

SEEDS = range(200)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_always_gives_the_same_output(family: str) -> None:
    assert all(generate(family, seed) == generate(family, seed) for seed in range(20))


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_cover_calls_text_reasoning_and_every_damage(family: str) -> None:
    outputs = [generate(family, seed) for seed in SEEDS]
    kinds = Counter(kind for output in outputs for kind in output.damage.split("+"))
    assert kinds["none"] > len(outputs) // 3
    assert len(kinds.keys() & set(damage.KINDS)) >= len(damage.KINDS) - 2
    intended = [output.intended for output in outputs if output.intended is not None]
    assert any(len(meant["calls"]) > 1 for meant in intended) or FAMILIES[family].parallel == 1
    assert any(meant["content"] for meant in intended)
    assert any(meant["reasoning"] for meant in intended) == (FAMILIES[family].reasoning_parser is not None)
    assert {str(output.tool_choice) for output in outputs} >= {"auto", "none", "required", "None"}


@pytest.mark.parametrize("family", TOP_TWELVE)
def test_undamaged_outputs_hold_what_the_model_meant(family: str) -> None:
    for seed in range(50):
        output = generate(family, seed, Knobs(damaged=0))
        if output.intended is None:
            continue
        for text in ("reasoning", "content", "after"):
            assert output.intended[text] in output.text
        for name, _ in output.intended["calls"]:
            assert name in output.text or isinstance(output.tool_choice, dict)
