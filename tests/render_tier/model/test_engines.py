"""The fast encoder gives the reference's IDs, is not used where it does not, and never fails a request.

`PARITY_TEXTS` is the number of texts per tokenizer: 2,000 by default; `make test-parity` takes 20,000.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from render_tier.model.engines import EngineSlot, FastEngine, FastEngineUnavailable, ReferenceEngine
from render_tier.model.parity import first_difference, probe_texts
from render_tier.model.tokenizer import load_tokenizer
from render_tier.rendering.prompt_cache import PromptCache
from tests.support.tokenizers import NAMES, encoders

TEXTS = int(os.environ.get("PARITY_TEXTS", "2000"))
ModelDir = Callable[[str], Path]


@pytest.mark.parametrize("name", NAMES)
def test_engines_and_cache_agree_on_every_kind_of_text(name: str, model_dir: ModelDir) -> None:
    chosen = encoders(model_dir(name))
    texts = probe_texts(chosen.added, chosen.vocabulary(), TEXTS, seed=5)
    assert len(texts) == TEXTS
    assert first_difference(chosen.reference, chosen.fast, texts) is None
    assert chosen.marks, "this tokenizer can be cut at its turn markers"
    cached = PromptCache(chosen.fast, chosen.marks, 1 << 24)
    for text in texts:
        ids = chosen.reference.ids(text, add_special_tokens=False)
        assert cached.ids(text).to_list() == ids, text
        assert cached.ids(text).to_list() == ids, text  # now from the cache
    marked = probe_texts(chosen.marks, texts[:500], TEXTS // 4, seed=6)
    for text in marked:
        assert cached.ids(text).to_list() == chosen.reference.ids(text, add_special_tokens=False), text


@pytest.mark.parametrize("name", NAMES)
def test_every_added_token_inside_text(name: str, model_dir: ModelDir) -> None:
    chosen = encoders(model_dir(name))
    texts = [f"a{token}b {token}\n{token}{token[:-1]}" for token in chosen.added]
    assert first_difference(chosen.reference, chosen.fast, texts) is None


def test_tokens_of_the_configuration_alone_are_known_to_both(model_dir: ModelDir, tmp_path: Path) -> None:
    shutil.copy(model_dir("smollm2") / "tokenizer.json", tmp_path)
    config = {
        "added_tokens_decoder": {
            "49152": {"content": "<|only_here|>", "special": True},
            "49153": {"content": "<plain_here>", "special": False, "normalized": True},
        },
        "pad_token": "<|pad_here|>",
    }
    loaded = load_tokenizer(tmp_path, config)
    fast = FastEngine.load(tmp_path / "tokenizer.json", loaded.added)
    reference = ReferenceEngine(loaded.encoder)
    text = "a<|only_here|> <plain_here><|pad_here|><|only_here"
    assert fast.ids(text, add_special_tokens=False) == reference.ids(text, add_special_tokens=False)
    assert {49152, 49153, 49154} <= set(fast.ids(text, add_special_tokens=False))
    added = [token["content"] for token in loaded.data["added_tokens"]]
    assert first_difference(reference, fast, probe_texts(added, (), 300)) is None


def test_lone_surrogates_are_refused_by_both(model_dir: ModelDir) -> None:
    chosen = encoders(model_dir("qwen3"))
    slot = EngineSlot(chosen.reference)
    slot.adopt(chosen.fast)
    faults: list[BaseException] = []
    slot.on_fault = faults.append
    for engine in (chosen.reference, slot):
        with pytest.raises((TypeError, UnicodeError)):
            engine.ids("a\ud800b", add_special_tokens=False)
    assert faults == []


def test_a_difference_is_found(model_dir: ModelDir) -> None:
    """An encoder without one added token differs, and the text that shows it is named."""
    directory = model_dir("smollm2")
    loaded = load_tokenizer(directory, {"pad_token": "<|one_more|>"})
    without = ReferenceEngine(Tokenizer.from_file(str(directory / "tokenizer.json")))
    added = [token["content"] for token in loaded.data["added_tokens"]]
    found = first_difference(ReferenceEngine(loaded.encoder), without, probe_texts(added, (), 500))
    assert found is not None
    assert "<|one_more|>" in found


class Panic(BaseException):
    pass


Panic.__name__ = "PanicException"


class Failing:
    name = "failing"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("match limit"), Panic("index out of range")], ids=type)
def test_what_the_fast_engine_fails_on_the_reference_encodes(
    error: BaseException, model_dir: ModelDir
) -> None:
    reference = encoders(model_dir("qwen3")).reference
    slot = EngineSlot(reference)
    slot.adopt(Failing(error))
    faults: list[BaseException] = []
    slot.on_fault = faults.append
    ids = slot.ids("Hello", add_special_tokens=False)
    assert ids == reference.ids("Hello", add_special_tokens=False)
    assert faults == [error]


def test_an_interrupt_is_no_fault(model_dir: ModelDir) -> None:
    slot = EngineSlot(encoders(model_dir("qwen3")).reference)
    slot.adopt(Failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        slot.ids("Hello", add_special_tokens=False)


def test_missing_package_and_unusable_file_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "Unheard"}}')
    with pytest.raises(FastEngineUnavailable, match=r"cannot load .*tokenizer\.json"):
        FastEngine.load(path, ())
    monkeypatch.setitem(sys.modules, "fastokens", None)
    with pytest.raises(FastEngineUnavailable, match="cannot be imported"):
        FastEngine.load(path, ())
