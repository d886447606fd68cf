"""The pixels of videos are those of transformers' torchvision processors, to the bit.

What the processors gave is recorded (`tests/vllm/record_video_pixels.py`);
`tests/vllm/test_video_pixels_equal_torchvision.py` runs them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from render_tier.multimodal.item import ImageRefused, UnsupportedProcessor
from render_tier.multimodal.processors.video_choice import video_processor
from tests.support.video_pixel_cases import RECORDED, SETTINGS, cases
from tests.support.video_pixels import ours


def test_pixels_are_the_recorded_ones() -> None:
    recorded = json.loads(RECORDED.read_text())["cases"]
    assert {case.title: ours(case) for case in cases()} == recorded
    assert None in recorded.values()


QWEN2, QWEN3, INTERNVL = ({"model_type": name} for name in ("qwen2_5_vl", "qwen3_vl", "internvl"))
OWN = {"patch_size": 14, "size": {"shortest_edge": 784, "longest_edge": 7840}}


def test_the_first_file_that_speaks_of_videos_counts() -> None:
    images = {"min_pixels": 3136, "max_pixels": 12845056}
    whole = {"video_processor": {**OWN, "size": {"shortest_edge": 784, "longest_edge": 15680}}}
    bounds = [
        video_processor(QWEN2, files, {}).most_pixels
        for files in ((whole, OWN, images), ({}, OWN, images), (None, None, images), (None, None, None))
    ]
    assert bounds == [15680, 7840, 12845056, 768 * 28**2]


@pytest.mark.parametrize(
    ("config", "own", "message"),
    [
        ({"model_type": "gemma3"}, {}, "videos of models of type 'gemma3' cannot be processed"),
        (QWEN2, {"video_processor_type": "OtherVideoProcessor"}, "with 'OtherVideoProcessor'"),
        (QWEN2, {"do_sample_frames": True}, "do_sample_frames=True"),
        (INTERNVL, {"do_sample_frames": True}, "do_sample_frames=True"),
        (
            {**INTERNVL, "vision_config": {"image_size": 448}},
            {},
            r"frames' \(height, width\) are \(384, 384\)",
        ),
        (INTERNVL, {"do_center_crop": True}, "do_center_crop=True"),
        (INTERNVL, {"do_resize": False}, "do_resize=False"),
        (QWEN3, {"fps": 4}, "fps=4"),
        (QWEN3, {"max_frames": 100}, "max_frames=100"),
        (QWEN3, {"cap_pixels_per_frame": True}, "cap_pixels_per_frame=True"),
        (QWEN3, {"do_resize": False}, "do_resize=False"),
    ],
)
def test_processors_that_are_not_known(config: dict[str, str], own: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedProcessor, match=message):
        video_processor(config, (None, own, None), {})


@pytest.mark.parametrize(
    ("files", "overrides", "size"),
    [
        ((None, {"size": {"height": 9, "width": 9}}, {"size": {"height": 40, "width": 56}}), {}, (40, 56)),
        (({"image_processor": {"size": 56}}, None, None), {}, (56, 56)),
        ((None, None, {"size": 56}), {"size": 28}, (28, 28)),
        ((None, None, None), {}, (384, 384)),
    ],
)
def test_frames_of_internvl_have_the_size_of_images(
    files: Any, overrides: Any, size: tuple[int, int]
) -> None:
    layout = video_processor(INTERNVL, files, overrides).layout(3, 1920, 1080)
    assert (layout.groups, layout.height, layout.width) == (3, *size)


@pytest.mark.parametrize("config", [QWEN2, QWEN3])
def test_a_refusal_names_the_size_that_was_sent(config: dict[str, str]) -> None:
    processor = video_processor(config, (None, None, None), {})
    with pytest.raises(ImageRefused, match="a picture of 3000x2 pixels"):
        processor.layout(2, 3000, 2)


def test_settings_make_digests_apart() -> None:
    digests = {
        video_processor(config, (None, {**SETTINGS[name], **more}, None), {}).settings_digest
        for config, name, other in (
            (QWEN2, "Qwen2VLVideoProcessor", {"merge_size": 4}),
            (QWEN3, "Qwen3VLVideoProcessor", {"merge_size": 4}),
            (INTERNVL, "InternVLVideoProcessor", {"do_rescale": False}),
        )
        for more in ({}, other, {"resample": 2})
    }
    assert len(digests) == 9
