"""Which processor a model's files name, and what of them is refused."""

import pytest

from render_tier.multimodal.item import ImageLayout, ImageRefused, UnsupportedProcessor
from render_tier.multimodal.processors import image_processor
from tests.support.pixel_cases import MODELS, OF_ITS_OWN, OVERRIDES


def test_a_model_type_without_processor_is_named() -> None:
    with pytest.raises(UnsupportedProcessor, match="'mllama'"):
        image_processor({"model_type": "mllama"}, {})
    with pytest.raises(UnsupportedProcessor, match="None"):
        image_processor({}, {})


def test_a_foreign_processor_is_named() -> None:
    with pytest.raises(UnsupportedProcessor, match=r"'qwen2_vl'.*'CLIPImageProcessor'"):
        image_processor({"model_type": "qwen2_vl"}, {"image_processor_type": "CLIPImageProcessor"})


def test_a_file_may_name_its_processor_as_it_was_named_before_or_not_at_all() -> None:
    settings = {"do_pad": True, "size": 336}
    padded = image_processor({"model_type": "llava"}, settings)
    assert padded.layout(3, 2) == ImageLayout(width=224, height=224)
    named = {**settings, "image_processor_type": "LlavaImageProcessor"}
    assert image_processor({"model_type": "llava"}, named).settings_digest == padded.settings_digest
    with pytest.raises(UnsupportedProcessor, match=r"CLIPImageProcessor.*do_pad"):
        image_processor(
            {"model_type": "llava"}, {**settings, "feature_extractor_type": "CLIPFeatureExtractor"}
        )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "wrong",
    [
        {"do_resize": False},
        {"do_normalize": False},
        {"resample": 0},
        {"resample": "bicubic"},
        {"size": {"height": "336", "width": 336}},
        {"size": -1},
        {"size": [1, 2, 3]},
        {"image_mean": [0.5]},
        {"image_std": [0.5, 0.0, 0.5]},
        {"rescale_factor": 0},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_followed_are_refused(model: str, wrong: dict[str, object]) -> None:
    files = MODELS[model]
    (key,) = wrong
    with pytest.raises(UnsupportedProcessor, match=key):
        image_processor(files.config, files.preprocessor, wrong, files.processor)


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        ("gemma3", {"do_pan_and_scan": "yes"}),
        ("gemma3", {"pan_and_scan_min_crop_size": 0, "do_pan_and_scan": True}),
        ("gemma3", {"pan_and_scan_max_num_crops": 1000, "do_pan_and_scan": True}),
        ("gemma3", {"pan_and_scan_min_ratio_to_activate": "1", "do_pan_and_scan": True}),
        ("llava", {"do_pad": True}),
        ("siglip", {"do_pad": True}),
        ("llava_in_square", {"image_mean": [0.5, 0.5, 1.5]}),
        ("llava", {"crop_size": {"shortest_edge": 3}}),
        ("qwen2_vl", {"patch_size": 0}),
        ("qwen2_vl", {"patch_size": True}),
        ("qwen2_vl", {"size": {"longest_edge": 5000}}),
        ("internvl", {"max_patches": 100_000}),
        ("internvl_chat", {"max_dynamic_patch": 100_000}),
        ("internvl_chat", {"min_dynamic_patch": 0}),
        ("internvl_chat", {"dynamic_image_size": 1}),
        ("llava_next", {"image_grid_pinpoints": [[336, 500]]}),
        ("llava_next", {"image_grid_pinpoints": []}),
        ("llava_next", {"crop_size": 224}),
        ("llava_next", {"crop_size": 224, "do_center_crop": False}),
    ],
)
def test_settings_of_one_family_are_refused(model: str, wrong: dict[str, object]) -> None:
    files = MODELS[model]
    key = next(iter(wrong))
    with pytest.raises(UnsupportedProcessor, match=key):
        image_processor(files.config, files.preprocessor, wrong, files.processor)


@pytest.mark.parametrize(
    ("model", "of_model"),
    [
        ("internvl", {"vision_config": {"image_size": [448, 224]}}),
        ("internvl", {"vision_config": {"image_size": 336}}),
        ("llava_next", {"vision_config": {"image_size": 224}}),
        ("llava_next", {"image_grid_pinpoints": [[336, 672]]}),
    ],
)
def test_tiles_that_the_model_does_not_take_are_refused(model: str, of_model: dict[str, object]) -> None:
    files = MODELS[model]
    with pytest.raises(UnsupportedProcessor, match="the model's"):
        image_processor({**files.config, **of_model}, files.preprocessor, {}, files.processor)


@pytest.mark.parametrize("name", ["mistral3", "pixtral"])
def test_images_larger_than_the_model_takes_are_refused(name: str) -> None:
    files = MODELS[name]
    vision = {**files.config["vision_config"], "image_size": 512}
    with pytest.raises(UnsupportedProcessor, match="image_size=512"):
        image_processor({**files.config, "vision_config": vision}, files.preprocessor, {}, files.processor)


def test_crops_that_would_be_empty_are_refused() -> None:
    files = MODELS["gemma3"]
    crops = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 1, "pan_and_scan_max_num_crops": 9}
    processor = image_processor(files.config, files.preprocessor, crops, files.processor)
    assert processor.layout(9, 1).tiles == 10
    with pytest.raises(ImageRefused, match="10x1"):
        processor.layout(10, 1)


def test_a_square_that_would_be_too_large_is_refused() -> None:
    files = MODELS["llava_in_square"]
    processor = image_processor(files.config, files.preprocessor, {}, files.processor)
    assert processor.layout(11_000, 2) == ImageLayout(width=336, height=336)
    with pytest.raises(ImageRefused, match="square"):
        processor.layout(12_000, 2)


def test_settings_may_be_in_the_file_of_all_processors() -> None:
    files = MODELS["gemma3"]
    whole = {"image_processor": files.preprocessor}
    apart = image_processor(files.config, files.preprocessor)
    assert image_processor(files.config, {}, {}, whole).settings_digest == apart.settings_digest


def test_the_patch_size_of_pixtral_is_the_models_where_no_file_of_its_processor_is() -> None:
    files = MODELS["mistral3"]
    apart = image_processor(files.config, files.preprocessor, {}, files.processor)
    assert image_processor(files.config, files.preprocessor).settings_digest == apart.settings_digest
    assert apart.layout(100, 50) == ImageLayout(width=112, height=56)


def test_the_digest_names_everything_that_changes_a_result() -> None:
    digests = set()
    count = 0
    for name, files in MODELS.items():
        normalized = [] if name == OF_ITS_OWN else [{"image_mean": [0.1, 0.2, 0.3]}]
        for overrides in ({}, *OVERRIDES[name], *normalized):
            count += 1
            found = image_processor(files.config, files.preprocessor, overrides, files.processor)
            digests.add(found.settings_digest)
    assert len(digests) == count
