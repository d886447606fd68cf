"""Flags, config file and environment to settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from render_tier import cli
from render_tier.settings import Settings

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "render-tier.example.toml"


@pytest.fixture(autouse=True)
def no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in cli.API_KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def parse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    """The settings with which ``render-tier ARGUMENTS`` would serve."""
    found: list[Settings] = []
    original = cli.settings_from

    def capture(given: dict[str, Any]) -> Settings:
        found.append(original(given))
        raise OSError("do not serve")

    with monkeypatch.context() as patched:
        patched.setattr(cli, "settings_from", capture)
        result = CliRunner().invoke(cli.app, cli._spread_lists(list(arguments)))
    assert found, result.output
    return found[0]


def test_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse(
        monkeypatch,
        *("serve", "dir", "--served-model-name", "a", "b", "--port", "1234", "--enable-auto-tool-choice"),
        *("--tool-call-parser", "hermes", "--default-chat-template-kwargs", '{"enable_thinking": false}'),
        *("--api-key", "k1", "k2", "--max-template-seconds", "1.5", "--no-strict-history"),
    )
    assert settings.model == "dir"
    assert settings.served_model_name == ("a", "b")
    assert settings.port == 1234
    assert settings.enable_auto_tool_choice is True
    assert settings.default_chat_template_kwargs == {"enable_thinking": False}
    assert settings.api_key == ("k1", "k2")
    assert settings.max_template_seconds == 1.5
    assert settings.strict_history is False


def test_only_given_flags_override_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('model = "from-file"\nport = 1\nworkers = 3\n[default_chat_template_kwargs]\na = 1\n')
    settings = parse(monkeypatch, "serve", "--config", str(path), "--port", "2")
    assert (settings.model, settings.port, settings.workers) == ("from-file", 2, 3)
    assert settings.default_chat_template_kwargs == {"a": 1}


def test_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert parse(monkeypatch, "serve", "m").api_key == ("secret",)
    assert parse(monkeypatch, "serve", "m", "--api-key", "flag").api_key == ("flag",)


def test_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="nope"):
        Settings.model_validate({"model": "m", "nope": 1})


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"image": -1}, "image"),
        ({"imgae": 2}, "'image', 'video' or 'audio'"),
        ({"imgae": {"count": 2}}, "'image', 'video' or 'audio'"),
        ({"video": 1.5}, "video"),
        ({"image": {"count": -1}}, "image"),
        ({"image": {"count": None}}, "image"),
        ({"image": {"num_frames": 3}}, "image: 'num_frames' is not known; count, width, height are"),
        ({"video": {"count": 1, "num_frames": 0}}, "video: num_frames is a whole number above 0"),
        ({"video": {"width": "512"}}, "video: width is a whole number above 0"),
        ([], "dict"),
    ],
)
def test_limits_of_media_that_are_none_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(model="m", limit_mm_per_prompt=limits)


def test_limits_of_media_may_be_objects_as_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {
        "image": {"count": 5, "width": 512, "height": None},
        "video": {"num_frames": 32, "width": 512, "height": 512},
        "audio": {"count": 0, "length": 1},
    }
    settings = parse(monkeypatch, "serve", "m", "--limit-mm-per-prompt", json.dumps(limits))
    assert settings.limit_mm_per_prompt == {"image": 5, "video": 999, "audio": 0}


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings(model="m").port = 1  # type: ignore[misc]


def test_secrets_are_not_shown() -> None:
    settings = Settings(model="m", api_key=("secret",), state_key=("hidden",))
    assert "secret" not in repr(settings.shown())
    assert "hidden" not in repr(settings.shown())


def test_digest_is_that_of_the_values() -> None:
    assert Settings(model="m").digest() == Settings(model="m", port=8000).digest()
    assert Settings(model="m").digest() != Settings(model="m", port=8001).digest()


def test_example_file_has_every_key_at_its_default() -> None:
    example = tomllib.loads(EXAMPLE.read_text())
    settings = Settings.model_validate(example)
    commented = {
        line[2:].split(" =")[0]
        for line in EXAMPLE.read_text().splitlines()
        if line.startswith("# ") and " = " in line
    }
    assert set(example) | commented == set(Settings.model_fields)
    assert settings == Settings(model=example["model"])


def test_every_setting_is_described_in_help() -> None:
    output = CliRunner().invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if not field.is_required():
            assert cli._flag(name) in output
