"""What is read of a model directory, and what is said when it cannot be served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from render_tier.model import ModelAssets, ModelLoadError, load_assets


@pytest.fixture
def model(smollm2_dir: Path, tmp_path: Path) -> Path:
    """A small model directory of its own, to change."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        shutil.copy(smollm2_dir / name, tmp_path / name)
    return tmp_path


def edit(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = json.loads(path.read_text())
    for key, value in values.items():
        content.pop(key, None)
        if value is not None:
            content[key] = value
    path.write_text(json.dumps(content))


def test_local_model_is_read_without_heavy_imports(smollm2_dir: Path) -> None:
    program = (
        "import sys; from render_tier.model import load_assets; load_assets(sys.argv[1]); "
        "heavy = ('transformers', 'torch', 'huggingface_hub', 'numpy'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(smollm2_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def test_smollm2(smollm2_assets: ModelAssets) -> None:
    assert smollm2_assets.max_model_len == 8192
    assert smollm2_assets.vocab_size == 49152
    assert smollm2_assets.eos_token_ids == (2,)
    assert smollm2_assets.chat_template is not None
    assert smollm2_assets.tool_chat_template == smollm2_assets.chat_template
    assert smollm2_assets.special_tokens["bos_token"] == "<|im_start|>"


def test_qwen3_stops_on_both_of_its_eos_tokens(qwen3_assets: ModelAssets) -> None:
    assert qwen3_assets.eos_token_ids == (151645, 151643)
    assert qwen3_assets.served_names == ("qwen3",)


@pytest.mark.parametrize("missing", ["/nonexistent/model", "./nonexistent"])
def test_missing_directory_is_named(missing: str) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        load_assets(missing)


def test_missing_tokenizer_json_is_named(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
        load_assets(str(model))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {}, "merges": 5}}'),
        ("config.json", "[]"),
        ("tokenizer_config.json", "not json"),
        ("generation_config.json", "{"),
    ],
)
def test_damaged_file_is_named(model: Path, name: str, content: str) -> None:
    (model / name).write_text(content)
    with pytest.raises(ModelLoadError, match=name.replace(".", r"\.")):
        load_assets(str(model))


class TestContextLength:
    def test_of_a_tokenizer_package_must_be_given(self, model: Path) -> None:
        (model / "config.json").unlink()
        edit(model / "tokenizer_config.json", model_max_length=1e30)
        with pytest.raises(ModelLoadError, match="--max-model-len"):
            load_assets(str(model))
        assert load_assets(str(model), max_model_len=512).max_model_len == 512

    def test_of_a_tokenizer_package_with_a_sane_length(self, model: Path) -> None:
        (model / "config.json").unlink()
        edit(model / "tokenizer_config.json", model_max_length=4096)
        assert load_assets(str(model)).max_model_len == 4096

    def test_cannot_be_raised(self, model: Path) -> None:
        assert load_assets(str(model), max_model_len=100).max_model_len == 100
        with pytest.raises(ModelLoadError, match="8192"):
            load_assets(str(model), max_model_len=8193)

    @pytest.mark.parametrize(
        ("config", "length"),
        [
            ({"max_position_embeddings": 1000}, 1000),
            ({"max_position_embeddings": 1000, "seq_length": 500}, 500),
            ({"max_position_embeddings": 1000, "model_max_length": 2000}, 2000),
            ({"text_config": {"max_position_embeddings": 700}}, 700),
            ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 4000),
            ({"max_position_embeddings": 1000, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 1000),
            (
                {"max_position_embeddings": 1000, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
                1000,
            ),
            (
                {
                    "max_position_embeddings": 1000,
                    "original_max_position_embeddings": 400,
                    "rope_scaling": {"rope_type": "longrope"},
                },
                400,
            ),
            ({"hidden_size": 8}, 2048),
        ],
    )
    def test_derived_as_vllm_derives_it(self, model: Path, config: dict[str, Any], length: int) -> None:
        (model / "config.json").write_text(json.dumps(config))
        edit(model / "tokenizer_config.json", model_max_length=None)
        assert load_assets(str(model)).max_model_len == length


class TestGenerationConfig:
    def test_own_values_and_overrides(self, model: Path) -> None:
        edit(model / "generation_config.json", temperature=0.3, max_new_tokens=50)
        own = load_assets(str(model))
        assert own.generation_config["temperature"] == 0.3
        assert own.max_tokens_cap is None
        overridden = load_assets(
            str(model), override_generation_config={"temperature": 0.7, "max_new_tokens": 9}
        )
        assert overridden.generation_config["temperature"] == 0.7
        assert overridden.max_tokens_cap == 9

    def test_vllm_means_none_but_stop_tokens_stay(self, model: Path) -> None:
        edit(model / "generation_config.json", temperature=0.3, eos_token_id=[2, 5])
        assets = load_assets(str(model), generation_config="vllm")
        assert "temperature" not in assets.generation_config
        assert assets.eos_token_ids == (2, 5)

    def test_from_another_directory(self, model: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / "generation_config.json").write_text('{"top_k": 3, "max_new_tokens": 11}')
        assets = load_assets(str(model), generation_config=str(other))
        assert assets.generation_config["top_k"] == 3
        assert assets.max_tokens_cap == 11
        with pytest.raises(ModelLoadError, match="generation_config"):
            load_assets(str(model), generation_config=str(tmp_path / "nowhere"))

    def test_eos_falls_back_to_the_model_config(self, model: Path) -> None:
        (model / "generation_config.json").unlink()
        edit(model / "config.json", eos_token_id=[2, 7])
        assert load_assets(str(model)).eos_token_ids == (2, 7)


class TestTokens:
    def test_token_that_only_the_tokenizer_config_adds(self, model: Path) -> None:
        edit(
            model / "tokenizer_config.json",
            added_tokens_decoder={"49152": {"content": "<|extra|>", "special": True}},
            additional_special_tokens=["<|more|>"],
        )
        assets = load_assets(str(model))
        ids = assets.tokenizer.ids("a<|extra|>b<|more|>", add_special_tokens=False)
        assert [ids[1], ids[3]] == [49152, 49153]
        assert assets.vocabulary.token_id("<|extra|>") == 49152
        assert 49153 in assets.vocabulary.special_ids

    def test_padding_and_truncation_of_the_file_are_ignored(self, model: Path) -> None:
        edit(
            model / "tokenizer.json",
            truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            padding={
                "strategy": {"Fixed": 9},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<|endoftext|>",
            },
        )
        assets = load_assets(str(model))
        assert len(assets.tokenizer.ids("one two three four", add_special_tokens=False)) == 4


class TestTemplates:
    def test_file_wins_over_the_config(self, model: Path) -> None:
        (model / "chat_template.jinja").write_text("from file")
        assert load_assets(str(model)).chat_template == "from file"

    def test_named_templates(self, model: Path) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        edit(model / "tokenizer_config.json", chat_template=named)
        assets = load_assets(str(model))
        assert (assets.chat_template, assets.tool_chat_template) == ("plain", "tools")

    def test_operator_template(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "mine.jinja").write_text("mine")
        assert load_assets(str(model), chat_template=str(tmp_path / "mine.jinja")).chat_template == "mine"
        assert load_assets(str(model), chat_template="{{ messages }}").chat_template == "{{ messages }}"
        with pytest.raises(ModelLoadError, match="chat-template"):
            load_assets(str(model), chat_template="nowhere.jinja")

    def test_model_without_one(self, model: Path) -> None:
        edit(model / "tokenizer_config.json", chat_template=None)
        assert load_assets(str(model)).chat_template is None


def test_fingerprint_names_what_decides_tokens_and_nothing_else(model: Path, tmp_path: Path) -> None:
    def fingerprint(**options: Any) -> str:
        return load_assets(str(model), **{"served_names": ("m",), **options}).fingerprint

    base = fingerprint()
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("copy"))
    assert load_assets(str(copy), served_names=("m", "alias")).fingerprint == base
    assert fingerprint(override_generation_config={"temperature": 0.1}) == base
    changed = {
        fingerprint(chat_template="{{ messages }}"),
        fingerprint(reasoning_parser="qwen3"),
        fingerprint(tool_parser="hermes"),
        fingerprint(served_names=("other",)),
        fingerprint(max_model_len=100),
    }
    edit(model / "tokenizer_config.json", additional_special_tokens=["<|new|>"])
    changed.add(fingerprint())
    assert len(changed | {base}) == 7
