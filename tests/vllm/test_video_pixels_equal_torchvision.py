"""Pixels of videos equal those of transformers' torchvision processors, which vLLM runs: for new ones each
time."""

from __future__ import annotations

import random

import pytest

from tests.support.video_pixel_cases import drawn
from tests.support.video_pixels import ours
from tests.vllm.torchvision_reference import torchvision_video_pixels

pytestmark = pytest.mark.vllm

DRAWN = 40


def test_pixels_equal_torchvision() -> None:
    seed = random.randrange(2**32)
    chosen = {case.title: case for case in drawn(seed, DRAWN)}
    reference = torchvision_video_pixels(chosen.values())
    different = [title for title, case in chosen.items() if ours(case) != reference["cases"][title]]
    assert not different, f"seed {seed}, {reference['made_by']}"
