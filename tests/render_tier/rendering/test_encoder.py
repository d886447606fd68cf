"""Text and IDs to prompts: special tokens, truncation and its side, offsets, and the context limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.model import ModelAssets
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.encoder import EncodeOptions, PromptEncoder
from tests.support.render_app import load_service, settings_for

PLAIN = EncodeOptions(add_special_tokens=False)


def encoder(assets: ModelAssets, max_model_len: int = 100) -> PromptEncoder:
    return PromptEncoder(
        assets.tokenizer,
        vocab_size=assets.vocab_size,
        max_model_len=max_model_len,
        max_chars_per_token=assets.max_chars_per_token,
    )


@pytest.fixture(scope="session")
def llama3_1_assets(llama3_1_dir: Path) -> ModelAssets:
    """A tokenizer that adds a BOS token."""
    return load_service(settings_for(llama3_1_dir, max_model_len=1000)).assets


def test_special_tokens_are_added_once_and_on_request(llama3_1_assets: ModelAssets) -> None:
    plain = encoder(llama3_1_assets).text("Hello", PLAIN).token_ids
    assert encoder(llama3_1_assets).text("Hello", EncodeOptions(add_special_tokens=True)).token_ids == [
        128000,
        *plain,
    ]


def test_special_token_text_is_its_token(qwen3_assets: ModelAssets) -> None:
    assert encoder(qwen3_assets).text("<|im_end|>", PLAIN).token_ids == [151645]


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_fast_and_offset_encoding_agree_and_offsets_cover_the_text(
    qwen3_assets: ModelAssets, text: str
) -> None:
    ids = encoder(qwen3_assets, 10_000).plain_ids(text, add_special_tokens=False)
    if not ids:
        return
    with_offsets = encoder(qwen3_assets, 10_000).text(
        text, EncodeOptions(add_special_tokens=False, offsets=True)
    )
    assert with_offsets.token_ids == ids
    assert with_offsets.offsets is not None
    assert len(with_offsets.offsets) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in with_offsets.offsets)


class TestTruncation:
    TEXT = "one two three four five six"

    def ids(self, assets: ModelAssets, **options: object) -> list[int]:
        merged = {"add_special_tokens": False, **options}
        return encoder(assets).text(self.TEXT, EncodeOptions(**merged)).token_ids  # type: ignore[arg-type]

    def test_keeps_the_end_unless_told(self, smollm2_assets: ModelAssets) -> None:
        whole = self.ids(smollm2_assets)
        assert self.ids(smollm2_assets, keep=2) == whole[-2:]
        assert self.ids(smollm2_assets, keep=2, side="left") == whole[-2:]
        assert self.ids(smollm2_assets, keep=2, side="right") == whole[:2]
        assert self.ids(smollm2_assets, keep=50) == whole

    def test_offsets_are_cut_with_the_tokens(self, smollm2_assets: ModelAssets) -> None:
        for side in (None, "left", "right"):
            prompt = encoder(smollm2_assets).text(
                self.TEXT,
                EncodeOptions(add_special_tokens=False, keep=2, side=side, offsets=True),  # type: ignore[arg-type]
            )
            assert prompt.offsets is not None
            start, end = prompt.offsets[0][0], prompt.offsets[-1][1]
            assert encoder(smollm2_assets).text(self.TEXT[start:end], PLAIN).token_ids == prompt.token_ids

    def test_bos_survives_a_cut_without_a_named_side(self, llama3_1_assets: ModelAssets) -> None:
        whole = self.ids(llama3_1_assets, add_special_tokens=True)
        assert self.ids(llama3_1_assets, add_special_tokens=True, keep=3) == [whole[0], *whole[-2:]]
        assert self.ids(llama3_1_assets, add_special_tokens=True, keep=3, side="left") == whole[-3:]
        assert self.ids(llama3_1_assets, add_special_tokens=True, keep=3, side="right") == whole[:3]

    def test_minus_one_keeps_what_fits(self, smollm2_assets: ModelAssets) -> None:
        small = encoder(smollm2_assets, 4)
        whole = self.ids(smollm2_assets)
        for reserve, kept in ((True, 3), (False, 4)):
            options = EncodeOptions(add_special_tokens=False, keep=-1, reserve_output=reserve)
            assert small.text(self.TEXT, options).token_ids == whole[-kept:]

    def test_of_ids(self, smollm2_assets: ModelAssets) -> None:
        options = EncodeOptions(add_special_tokens=True, keep=2)
        assert encoder(smollm2_assets).token_ids([5, 6, 7], options).token_ids == [6, 7]

    def test_to_nothing_is_refused(self, smollm2_assets: ModelAssets) -> None:
        with pytest.raises(BadRequest, match="No token_ids"):
            self.ids(smollm2_assets, keep=0)

    def test_beyond_the_context_is_refused(self, smollm2_assets: ModelAssets) -> None:
        with pytest.raises(BadRequest, match="truncate_prompt_tokens=101"):
            self.ids(smollm2_assets, keep=101)

    def test_of_a_text_longer_than_any_prompt(self, smollm2_assets: ModelAssets) -> None:
        small = encoder(smollm2_assets, 10)
        text = "a " * smollm2_assets.max_chars_per_token * 6 + "end"
        assert len(text) > 10 * smollm2_assets.max_chars_per_token
        left = EncodeOptions(add_special_tokens=False, keep=3, side="left", offsets=True)
        prompt = small.text(text, left)
        assert prompt.offsets is not None
        assert text[prompt.offsets[-1][0] : prompt.offsets[-1][1]].strip() == "end"
        with pytest.raises(BadRequest) as refused:
            small.text(text, PLAIN)
        assert refused.value.param == "input_text"


class TestLimits:
    def test_prompt_of_exactly_the_context_is_a_prompt(self, smollm2_assets: ModelAssets) -> None:
        assert len(encoder(smollm2_assets, 3).token_ids([1, 2, 3], PLAIN).token_ids) == 3

    @pytest.mark.parametrize(("count", "shown"), [(4, "4"), (9, "9")])
    def test_too_many_ids(self, smollm2_assets: ModelAssets, count: int, shown: str) -> None:
        with pytest.raises(BadRequest, match=f"contains {shown} input tokens") as refused:
            encoder(smollm2_assets, 3).token_ids([1] * count, PLAIN)
        assert refused.value.param == "input_tokens"

    def test_too_long_text(self, smollm2_assets: ModelAssets) -> None:
        with pytest.raises(BadRequest, match="at least 4 input tokens") as refused:
            encoder(smollm2_assets, 3).text("one two three four five six", PLAIN)
        assert refused.value.param == "input_tokens"

    @pytest.mark.parametrize("token_id", [-1, 49152, 99_999_999, 2**70])
    def test_id_outside_the_vocabulary(self, smollm2_assets: ModelAssets, token_id: int) -> None:
        with pytest.raises(BadRequest, match="out of vocabulary") as refused:
            encoder(smollm2_assets).token_ids([1, token_id, 2], PLAIN)
        assert refused.value.param == "prompt"

    def test_lone_surrogate(self, smollm2_assets: ModelAssets) -> None:
        with pytest.raises(BadRequest, match="surrogate"):
            encoder(smollm2_assets).text("a\ud800", PLAIN)
