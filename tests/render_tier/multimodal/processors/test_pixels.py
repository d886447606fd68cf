"""Every family's pixels are those of transformers' torchvision processor, to the bit.

What the processors gave is recorded (`tests/vllm/record_pixels.py`);
`tests/vllm/test_pixels_equal_torchvision.py` runs them.
"""

import json

import pytest

from render_tier.multimodal.item import ImageProcessor, ImageRefused
from render_tier.multimodal.processors import image_processor, resampling
from tests.support.pixel_cases import MODELS, RECORDED, Case, cases, summary


def processor(case: Case) -> ImageProcessor:
    model = MODELS[case.model]
    return image_processor(model.config, model.preprocessor, case.overrides, model.processor)


@pytest.fixture(scope="module")
def recorded() -> dict[str, object]:
    return json.loads(RECORDED.read_text())["cases"]


def test_every_case_is_recorded(recorded: dict[str, object]) -> None:
    assert set(recorded) == {case.title for case in cases()}


@pytest.mark.parametrize("model", MODELS)
def test_pixels_are_the_recorded_ones(model: str, recorded: dict[str, object]) -> None:
    for case in cases():
        if case.model != model:
            continue
        ours = processor(case)
        if recorded[case.title] is None:
            with pytest.raises(ImageRefused, match=f"{case.width}x{case.height}"):
                ours.process(case.image())
            with pytest.raises(ImageRefused):
                ours.layout(case.width, case.height)
            continue
        result = ours.process(case.image())
        assert summary(result.arrays) == recorded[case.title], case.title
        assert (result.width, result.height) == (case.width, case.height)
        layout = ours.layout(case.width, case.height)
        shown = 3 * layout.width * layout.height * layout.tiles
        copies = 2 if "image_grid_thw" in result.arrays else 1
        (pixels,) = (array for name, array in result.arrays.items() if name.startswith("pixel_values"))
        assert pixels.size == shown * copies, case.title


@pytest.mark.parametrize("model", MODELS)
def test_pixels_are_the_same_without_compiled_passes(
    model: str, recorded: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resampling, "passes", lambda: None)
    taken = [case for case in cases() if case.model == model and recorded[case.title] is not None]
    for case in taken[::5]:
        result = processor(case).process(case.image())
        assert summary(result.arrays) == recorded[case.title], case.title
