"""What stands in a prompt for an image, or a video, of each family."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.model import ModelLoadError
from render_tier.multimodal.families import Family, Spelled, VideoPlaces, family_of, video_form_of
from render_tier.multimodal.families.llava import unpadded
from render_tier.multimodal.item import ImageLayout
from tests.support.vision_models import GEMMA3, QWEN2_5_VL

TOKENS = ["<|image_pad|>", "<image>", "\n", "\n\n", "\n\n\n", "\n\n\n\n"]
TOKENS += ["<start_of_image>", "<image_soft_token>", "<end_of_image>"]


class Words:
    """A vocabulary of few tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def token_id(self, text: str) -> int | None:
        return self.tokens.index(text) if text in self.tokens else None

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            token = max((token for token in self.tokens if text.startswith(token)), key=len)
            ids.append(self.tokens.index(token))
            text = text[len(token) :]
        return ids


def family(config: Any, tokens: list[str] = TOKENS) -> Family | None:
    words = Words(tokens)
    return family_of(config, words, words.encode)  # type: ignore[arg-type]


def length(config: Any, width: int, height: int) -> int:
    found = family(config)
    assert found is not None
    replacement = found.replacement(ImageLayout(width=width, height=height), width, height)
    assert replacement.ids[replacement.first : replacement.first + replacement.count]
    return replacement.count


def test_qwen_has_a_token_for_each_merged_patch() -> None:
    assert length(QWEN2_5_VL, 56, 84) == 2 * 3
    qwen3 = {**QWEN2_5_VL, "model_type": "qwen3_vl", "vision_config": {"patch_size": 16}}
    assert length(qwen3, 64, 96) == 2 * 3


def test_gemma_has_as_many_whatever_the_image() -> None:
    found = family(GEMMA3)
    assert found is not None
    replacement = found.replacement(ImageLayout(width=896, height=896), 50, 60)
    lines, begin, soft, end = (TOKENS.index(token) for token in ("\n\n", *TOKENS[-3:]))
    assert replacement.ids == (lines, begin, *[soft] * 256, end, lines)
    assert (replacement.first, replacement.count) == (2, 256)


@pytest.mark.parametrize(
    ("vision", "strategy", "count"),
    [
        ("clip_vision_model", "default", 576),
        ("clip_vision_model", "full", 577),
        ("siglip_vision_model", "full", 576),
    ],
)
def test_llava_has_a_token_for_each_patch_that_is_selected(vision: str, strategy: str, count: int) -> None:
    config = {
        "model_type": "llava",
        "image_token_index": 1,
        "vision_feature_select_strategy": strategy,
        "vision_config": {"model_type": vision, "patch_size": 14},
    }
    assert length(config, 336, 336) == count


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3"},
        {"model_type": "qwen2_5_vl"},
        {"model_type": "llava_next", "vision_config": {"model_type": "pixtral"}},
        {"model_type": "llava_next"},
        {"model_type": "internvl"},
    ],
)
def test_models_whose_images_are_not_taken(config: Any) -> None:
    assert family(config) is None


@pytest.mark.parametrize(
    ("config", "side"),
    [
        ({"model_type": "mistral3", "vision_config": {"patch_size": 14}}, 28),
        ({"model_type": "llava", "vision_config": {"model_type": "pixtral", "patch_size": 16}}, 16),
    ],
)
def test_mistral_has_lines_of_patches(config: Any, side: int) -> None:
    found = family(config, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    assert found is not None
    replacement = found.replacement(ImageLayout(width=3 * side, height=2 * side), 9, 9)
    assert replacement.ids == (0, 0, 0, 1, 0, 0, 0, 2)
    assert (replacement.first, replacement.count) == (0, 8)
    assert replacement.mask == (True, True, True, False) * 2


def test_a_video_of_internvl_is_a_line_for_each_frame() -> None:
    config = {"model_type": "internvl", "vision_config": {"patch_size": [14, 14], "image_size": [56, 84]}}
    words = Words(["<img>", "</img>", "<video>", "<IMG_CONTEXT>", "Frame1: ", "\nFrame2: ", "\nFrame3: "])
    form = video_form_of(config, words, words.encode)  # type: ignore[arg-type]
    assert form is not None
    found = form.replacement(VideoPlaces(groups=3, height=56, width=84, times=()))
    assert found.ids == tuple(token for line in (4, 5, 6) for token in (line, 0, *[2] * 6, 1))
    assert (found.first, found.count, found.later, found.of_video) == (2, 6, (11, 20), True)


@pytest.mark.parametrize("has_place", [False, True])
def test_internvls_own_format_has_a_place_that_may_be_no_token(has_place: bool) -> None:
    config = {"model_type": "internvl_chat", "vision_config": {"image_size": 56}, "downsample_ratio": 0.5}
    letters = sorted(set("<image>"))
    tokens = ["<img>", "<IMG_CONTEXT>", "</img>", *letters, *(["<image>"] if has_place else [])]
    found = family(config, tokens)
    assert found is not None
    assert (found.mark, found.token) == ("<image>", "<image>")
    if has_place:
        assert (found.token_id, found.spelled) == (tokens.index("<image>"), None)
    else:
        assert found.token_id == 1
        assert found.spelled == Spelled(tuple(map(tokens.index, "<image>")), "<IMG_CONTEXT>", 1)
    assert found.fields["image_token_id"].value == 1
    replacement = found.replacement(ImageLayout(width=56, height=56, tiles=3), 9, 9)
    assert replacement.ids == (0, *[1] * 12, 2)
    assert (replacement.first, replacement.count) == (1, 12)


@pytest.mark.parametrize(
    ("text", "has_videos"),
    [("qwen2", True), ("qwen3", True), ("llama", False), ("gpt_oss", False)],
)
def test_internvls_own_format_has_videos_where_its_text_model_has_a_token_for_them(
    text: str, has_videos: bool
) -> None:
    tokens = ["<img>", "<IMG_CONTEXT>", "</img>", "<|video_pad|>", *sorted(set("<video>Frame12: "))]
    words = Words(tokens)
    config = {
        "model_type": "internvl_chat",
        "llm_config": {"model_type": text},
        "vision_config": {"image_size": 56},
    }
    form = video_form_of(config, words, words.encode)  # type: ignore[arg-type]
    assert (form is not None) == has_videos
    if form is None:
        return
    made = form.replacement(VideoPlaces(2, 56, 56, ()))
    frame = (0, 3, 3, 3, 3, 2)
    assert made.ids == (*frame, *words.encode("Frame2: "), *frame)
    assert (made.first, made.count, made.later) == (1, 4, (6 + len("Frame2: ") + 1,))
    assert form.spelled is not None
    assert form.spelled.lead_ids == tuple(words.encode("Frame1: "))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 3000), st.integers(1, 3000))
def test_what_is_left_of_a_grid_is_its_middle(columns: int, lines: int, width: int, height: int) -> None:
    scale = min(Fraction(columns, width), Fraction(lines, height))
    beside, above = columns - int(width * scale), lines - int(height * scale)
    assert unpadded(columns, lines, width, height) == (columns - beside // 2 * 2, lines - above // 2 * 2)


def test_tokenizer_without_the_tokens() -> None:
    with pytest.raises(ModelLoadError, match="image_pad"):
        family(QWEN2_5_VL, ["a"])
