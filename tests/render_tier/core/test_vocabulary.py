"""The byte table spells what the tokenizer's own decode spells."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from render_tier.core.vocabulary import build_vocabulary


@pytest.mark.parametrize("model", ["qwen3_dir", "smollm2_dir", "llama3_1_dir"])
@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_spell_what_the_tokenizer_decodes(
    model: str, skip: bool, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(model) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    vocabulary = build_vocabulary(json.loads(path.read_text(encoding="utf-8")))
    rng = random.Random(7)
    assert vocabulary.size == tokenizer.get_vocab_size()
    for _ in range(300):
        ids = [rng.randrange(vocabulary.size) for _ in range(rng.randrange(40))]
        assert vocabulary.text(ids, skip_special_tokens=skip) == tokenizer.decode(
            ids, skip_special_tokens=skip
        )


@pytest.mark.parametrize("finds", [True, False], ids=["by the tokenizer", "by a table"])
def test_special_tokens_and_markers_are_known(qwen3_dir: Path, finds: bool) -> None:
    path = qwen3_dir / "tokenizer.json"
    find = Tokenizer.from_file(str(path)).token_to_id if finds else None
    vocabulary = build_vocabulary(json.loads(path.read_text(encoding="utf-8")), find)
    assert vocabulary.token_id("<think>") == 151667
    assert vocabulary.token_id("Ġthe") == 279
    assert vocabulary.token_id("no such token") is None
    assert vocabulary.token_id("\ud800") is None
    assert 151645 in vocabulary.special_ids
    assert 151667 not in vocabulary.special_ids


def sentencepiece_json() -> dict[str, Any]:
    vocab = {"<unk>": 0, "▁a": 1, "b": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    tokenizer = Tokenizer(BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    return data


def test_byte_fallback_pieces_and_spaces() -> None:
    data = sentencepiece_json()
    vocabulary = build_vocabulary(data)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    for ids in ([1, 2], [3 + 0xC3, 3 + 0xA9], [1, 3 + 0xF0, 3 + 0x9F], [3 + 0xFF, 2], [3 + 0xE4, 3 + 0xBD]):
        assert vocabulary.text(ids) == tokenizer.decode(ids, skip_special_tokens=False)


def test_ids_that_the_tokenizer_lacks_spell_nothing(qwen3_dir: Path) -> None:
    vocabulary = build_vocabulary(json.loads((qwen3_dir / "tokenizer.json").read_text(encoding="utf-8")))
    assert vocabulary.token_bytes(vocabulary.size) == b""
    assert vocabulary.pieces[vocabulary.size + 5] == ""
    assert vocabulary.pieces[-1] == ""


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "no decoder"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "Replace", "pattern": {"Regex": "x"}, "content": " "}, "Replace"),
    ],
)
def test_a_spelling_that_is_not_understood_is_refused(decoder: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_vocabulary({"model": {"vocab": {"a": 0}}, "decoder": decoder})


def test_a_tokenizer_without_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.vocab"):
        build_vocabulary({"model": {}, "decoder": {"type": "ByteLevel"}})
