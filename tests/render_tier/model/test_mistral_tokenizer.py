"""Tokenizers of Mistral's format: which files are taken, and that every ID is spelled as the library does."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from render_tier.model import ModelLoadError, load_assets
from render_tier.model.mistral_tokenizer import MistralTokenizer, tokenizer_file
from tests.support.render_corpus import NATIVE, lay_out


@pytest.fixture(scope="module", params=["mistral", "mistral_v13", "mistral_spm"])
def tokenizer(request: pytest.FixtureRequest, model_dir: Callable[[str], Path]) -> MistralTokenizer:
    file = tokenizer_file(model_dir(NATIVE[request.param].tokenizer), demanded=True)
    assert file is not None
    return MistralTokenizer.load(file)


def test_the_vocabulary_spells_every_id_as_the_library_does(tokenizer: MistralTokenizer) -> None:
    vocabulary = tokenizer.vocabulary()
    library = tokenizer.library.instruct_tokenizer.tokenizer
    assert vocabulary.size == library.n_words
    assert vocabulary.special_ids == {i for i in range(vocabulary.size) if library.is_special(i)}
    for token_id in range(0, vocabulary.size, 7):
        if tokenizer.is_tekken:
            expected = tokenizer.piece(token_id)
            if token_id not in vocabulary.special_ids and "\ufffd" in expected:
                assert vocabulary.token_bytes(token_id) == library.id_to_byte_piece(token_id)
                continue
        elif (byte := re.fullmatch("<0x(..)>", tokenizer.piece(token_id))) is not None:
            assert vocabulary.token_bytes(token_id) == bytes.fromhex(byte[1])
            continue
        else:
            expected = tokenizer.piece(token_id).replace("▁", " ")
        assert vocabulary.token_bytes(token_id).decode() == expected


@pytest.mark.parametrize("text", ["Hello", "naïve 日本語 👩‍👩‍👧‍👦 e\u0301\r\n\t", "<s>[INST]</s>", "  two  "])
def test_texts_come_back_and_spell_no_special_token(tokenizer: MistralTokenizer, text: str) -> None:
    vocabulary = tokenizer.vocabulary()
    ids = tokenizer.ids(text, add_special_tokens=False)
    assert not set(ids) & vocabulary.special_ids
    back = vocabulary.text(ids)
    assert back == text if tokenizer.is_tekken else back.lstrip(" ") == text.lstrip(" ")
    assert tokenizer.ids(text, add_special_tokens=True) == [tokenizer.bos_id, *ids]


def test_a_cut_text_keeps_its_end_and_its_first_special_token(tokenizer: MistralTokenizer) -> None:
    ids = tokenizer.ids("one two three four five", add_special_tokens=False)
    cut, offsets = tokenizer.encoded("one two three four five", add_special_tokens=True, keep=2, offsets=True)
    assert (cut, offsets) == ([tokenizer.bos_id, *ids[-2:]], None)
    assert tokenizer.encoded("one", add_special_tokens=True, keep=0, offsets=False)[0] == [tokenizer.bos_id]


def laid_out(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (("tekken.json",), "tekken.json"),
        (("tokenizer.model.v3", "tokenizer.model.v7"), "tokenizer.model.v7"),
        (("tekken.json", "tokenizer.model.v7"), "tekken.json"),
        (("tekken.json", "tokenizer.json"), None),
        (("tekken.json", "tokenizer.json", "params.json"), "tekken.json"),
        (("tekken.json", "tokenizer.json", "consolidated-00001-of-00002.safetensors"), "tekken.json"),
        (("tokenizer.json", "params.json"), None),
        ((), None),
    ],
)
def test_mistrals_file_is_taken_in_mistrals_layout(
    tmp_path: Path, files: tuple[str, ...], taken: str | None
) -> None:
    found = tokenizer_file(laid_out(tmp_path, *files), demanded=False)
    assert (found and found.name) == taken


def test_the_mode_decides_where_both_are(
    tmp_path: Path, model_dir: Callable[[str], Path], qwen3_dir: Path
) -> None:
    directory = lay_out(NATIVE["mistral"], model_dir("tekken_240911"), tmp_path / "model")
    (directory / "tokenizer.json").symlink_to((qwen3_dir / "tokenizer.json").resolve())
    hf = load_assets(str(directory))
    ours = load_assets(str(directory), tokenizer_mode="mistral")
    assert hf.mistral is None
    assert ours.mistral is not None
    assert ours.vocab_size == 131072
    assert ours.eos_token_ids == (2,)
    assert hf.fingerprint != ours.fingerprint


def test_a_demanded_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no tokenizer of Mistral's format"):
        load_assets(str(tmp_path), tokenizer_mode="mistral", max_model_len=10)


def test_params_json_stands_in_for_config_json(tmp_path: Path, model_dir: Callable[[str], Path]) -> None:
    (tmp_path / "tekken.json").symlink_to(model_dir("tekken_240911") / "tekken.json")
    (tmp_path / "params.json").write_text(json.dumps({"dim": 64, "vocab_size": 131072}))
    assert load_assets(str(tmp_path)).max_model_len == 128_000
    (tmp_path / "params.json").write_text(json.dumps({"vocab_size": 131072, "max_position_embeddings": 9}))
    assert load_assets(str(tmp_path)).max_model_len == 9


def test_faults_of_the_file_and_of_the_installation_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tekken.json"
    file.write_text("{}")
    with pytest.raises(ModelLoadError, match=r"tekken\.json cannot be read by mistral-common"):
        MistralTokenizer.load(file)
    monkeypatch.setitem(sys.modules, "mistral_common.tokens.tokenizers.mistral", None)
    with pytest.raises(ModelLoadError, match=r"pip install 'disagg-frontend\[mistral\]'"):
        MistralTokenizer.load(file)
