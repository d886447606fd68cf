"""Pixels equal those of transformers' torchvision processors, which vLLM runs: for new images each time and
a part of the recorded ones."""

import random

import pytest

from render_tier.multimodal.item import ImageRefused
from render_tier.multimodal.processors import image_processor
from tests.support.pixel_cases import KINDS, MODELS, OVERRIDES, Case, cases, summary
from tests.vllm.torchvision_reference import torchvision_pixels

pytestmark = pytest.mark.vllm

DRAWN = 12
"""Images for each model."""
RECORDED_PART = 10
"""One in so many recorded cases is made again."""


def drawn(seed: int) -> list[Case]:
    choose = random.Random(seed)

    def side() -> int:
        return choose.randint(1, choose.choice([30, 300, 1400]))

    return [
        Case(model, choose.choice([{}, *OVERRIDES[model]]), choose.choice(KINDS), side(), side())
        for model in MODELS
        for _ in range(DRAWN)
    ]


def ours(case: Case) -> dict[str, list[object]] | None:
    model = MODELS[case.model]
    processor = image_processor(model.config, model.preprocessor, case.overrides, model.processor)
    try:
        return summary(processor.process(case.image()).arrays)
    except ImageRefused:
        return None


def test_pixels_equal_torchvision() -> None:
    seed = random.randrange(2**32)
    chosen = {case.title: case for case in [*drawn(seed), *list(cases())[::RECORDED_PART]]}
    reference = torchvision_pixels(chosen.values())
    different = [title for title, case in chosen.items() if ours(case) != reference["cases"][title]]
    assert not different, f"seed {seed}, {reference['made_by']}"
