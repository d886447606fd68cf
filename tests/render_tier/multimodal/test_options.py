"""What requests may say of how their images are read and processed."""

from __future__ import annotations

from typing import Any

import pytest

from render_tier.multimodal.hashing import image_hash, name_hash
from render_tier.multimodal.item import ImageProcessor
from render_tier.multimodal.options import ImageOptions, OptionRefused, image_options
from render_tier.multimodal.processors.choice import image_processor

SQUARE = {"size": {"height": 224, "width": 224}}
PROCESSORS: dict[str, ImageProcessor] = {
    "qwen2_vl": image_processor({"model_type": "qwen2_vl"}, {}),
    "gemma3": image_processor({"model_type": "gemma3"}, {}),
    "internvl": image_processor({"model_type": "internvl"}, SQUARE),
    "internvl_chat": image_processor({"model_type": "internvl_chat"}, {}),
    "mistral3": image_processor({"model_type": "mistral3"}, {"patch_size": 14}),
}
MOST = 1000


def options(model: str, processor: Any, reading: Any = None) -> ImageOptions:
    return image_options(processor, reading, processor=PROCESSORS[model], most=MOST)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("qwen2_vl", {"min_pixels": 1, "max_pixels": 1000}),
        ("qwen2_vl", {"size": {"shortest_edge": 10, "longest_edge": 100}}),
        ("internvl", {"crop_to_patches": False, "min_patches": 2, "max_patches": 2}),
        ("internvl_chat", {"dynamic_image_size": True, "max_dynamic_patch": 4, "use_thumbnail": False}),
        ("mistral3", {"size": {"longest_edge": 28}}),
        ("gemma3", {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 3}),
        ("gemma3", {"do_pan_and_scan": True, "pan_and_scan_min_ratio_to_activate": 1.5}),
    ],
)
def test_known_settings_are_taken_as_they_are(model: str, given: dict[str, Any]) -> None:
    assert options(model, given).processor == given


@pytest.mark.parametrize(
    ("model", "given", "param", "reason"),
    [
        ("qwen2_vl", {"patch_size": 16}, "patch_size", "max_pixels, min_pixels, size are for this model"),
        ("qwen2_vl", {"do_normalize": False}, "do_normalize", "not known"),
        ("qwen2_vl", {"max_patches": 2}, "max_patches", "not known"),
        ("qwen2_vl", {"max_pixels": 1001}, "max_pixels", "from 1 to 1000"),
        ("qwen2_vl", {"max_pixels": 0}, "max_pixels", "from 1 to 1000"),
        ("qwen2_vl", {"max_pixels": True}, "max_pixels", "from 1 to 1000"),
        ("qwen2_vl", {"max_pixels": 10.0}, "max_pixels", "from 1 to 1000"),
        ("qwen2_vl", {"max_pixels": "10"}, "max_pixels", "from 1 to 1000"),
        ("qwen2_vl", {"max_pixels": None}, "max_pixels", "from 1 to 1000"),
        ("qwen2_vl", {"min_pixels": 2**70}, "min_pixels", "from 1 to 1000"),
        ("qwen2_vl", {"min_pixels": 20, "max_pixels": 10}, "min_pixels", "more than max_pixels"),
        ("qwen2_vl", {"size": 10}, "size", "an object is needed"),
        ("qwen2_vl", {"size": {}}, "size", "an object is needed"),
        ("qwen2_vl", {"size": {"depth": 1}}, "size", "an object is needed"),
        ("qwen2_vl", {"size": {"longest_edge": 1001}}, "size.longest_edge", "from 1 to 1000"),
        ("internvl", {"crop_to_patches": 1}, "crop_to_patches", "neither true nor false"),
        ("internvl", {"min_patches": 3, "max_patches": 2}, "min_patches", "more than max_patches"),
        ("internvl", {"size": {"height": 8, "width": 8}}, "size", "not known"),
        ("internvl_chat", {"min_dynamic_patch": 3, "max_dynamic_patch": 2}, "min_dynamic_patch", "more than"),
        ("internvl_chat", {"image_size": 224}, "image_size", "not known"),
        *(
            (
                "gemma3",
                {"pan_and_scan_min_ratio_to_activate": ratio},
                "pan_and_scan_min_ratio_to_activate",
                "a number from 1 to 1000",
            )
            for ratio in (0.5, True, "2", 1e9, float("inf"), float("nan"), None)
        ),
        ("mistral3", {"longest_edge": 8}, "longest_edge", "size is for this model"),
        (
            "gemma3",
            {"size": {"height": 8, "width": 8}},
            "size",
            "pan_and_scan_min_ratio_to_activate are for this model",
        ),
    ],
)
def test_processor_settings_refused(model: str, given: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(OptionRefused, match=reason) as refused:
        options(model, given)
    assert refused.value.param == f"mm_processor_kwargs.{param}"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"sound": {}}, "media_io_kwargs.sound"),
        ({"image": {"quality": 1}}, "media_io_kwargs.image.quality"),
        ({"image": {"image_mode": "L"}}, "media_io_kwargs.image.image_mode"),
        ({"image": {"image_mode": None}}, "media_io_kwargs.image.image_mode"),
        *(
            ({"image": {"rgba_background_color": color}}, "media_io_kwargs.image.rgba_background_color")
            for color in ("red", [1, 2], [1, 2, 3, 4], [0, 0, 256], [0, 0, -1], [0, 0, True], [0, 0, 1.0])
        ),
    ],
)
def test_reading_settings_refused(given: dict[str, Any], param: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        options("qwen2_vl", None, given)
    assert refused.value.param == param


def test_the_kinds_of_media_that_are_known_are_named() -> None:
    with pytest.raises(OptionRefused, match="image is, and of some models video"):
        options("qwen2_vl", None, {"audio": {}})


def test_hashes_and_keys_tell_all_settings_apart() -> None:
    given = [
        ImageOptions(),
        options("qwen2_vl", {"max_pixels": 10}),
        options("qwen2_vl", {"min_pixels": 10}),
        options("qwen2_vl", {"min_pixels": 10, "max_pixels": 20}),
        options("qwen2_vl", {"max_pixels": 20, "min_pixels": 10}),
        options("qwen2_vl", None, {"image": {"rgba_background_color": [1, 2, 3]}}),
        options("internvl", {"crop_to_patches": True}),
        options("internvl", {"crop_to_patches": False}),
    ]
    factors = [each.hash_factors for each in given]
    hashes = {image_hash(b"a", model="m", conversion=None, factors=each) for each in factors}
    names = {name_hash("mine", model="m", factors=each) for each in factors}
    assert len(hashes) == len(names) == len({each.digest for each in given}) == len(given)
    assert "mine" in names


def test_nothing_said_is_nothing() -> None:
    assert not options("qwen2_vl", {}, {"image": {}})
    assert not options("gemma3", None, {})
