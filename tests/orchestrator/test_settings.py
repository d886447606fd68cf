"""Settings: defaults, the annotated example, files, options, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from typer.testing import CliRunner

from orchestrator.cli import app, load_settings
from orchestrator.server.services import Services
from orchestrator.settings import ConfigError, Settings, merged, read_config
from render_tier.settings import Settings as RenderSettings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "orchestrator.example.toml"


def keys(model: type[BaseModel]) -> dict[str, set[str]]:
    return {
        name: set(info.annotation.model_fields)
        for name, info in model.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }


def test_the_example_shows_every_key_with_its_default() -> None:
    assert Settings.model_validate(read_config(EXAMPLE)) == Settings()
    text = EXAMPLE.read_text(encoding="utf-8")
    shown = {section: set(values) for section, values in tomllib.loads(text).items()}
    for section, names in keys(Settings).items():
        commented = {name for name in names if f"\n# {name} = " in text}
        assert shown[section] | commented == names, section


@pytest.mark.parametrize(
    "values",
    [
        {"nope": 1},
        {"server": {"nope": 1}},
        {"policy": {"held_kv": "maybe"}},
        {"timeouts": {"prefill": 0}},
        {"timeouts": {"prefill": float("inf")}},
        {"members": {"render": ["ftp://x"]}},
        {"lease": {"fraction": 1.5}},
    ],
)
def test_what_is_not_a_setting_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(values)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", "[server]\nport = 1234\n"),
        ("c.yaml", "server:\n  port: 1234\n"),
        ("c.json", '{"server": {"port": 1234}}'),
    ],
)
def test_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_config(path) == {"server": {"port": 1234}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", "="),
        ("c.yaml", "a: ["),
        ("c.json", "["),
        ("c.ini", ""),
        ("c.json", "[]"),
        ("missing.toml", None),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=name):
        read_config(path)


def test_an_empty_yaml_file_sets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("")
    assert read_config(path) == {}


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    members = {"render": ["http://r/"], "decode": ["http://d", "http://d/"]}
    path.write_text(json.dumps({"server": {"port": 1, "host": "h"}, "members": members}))
    settings = load_settings(path, {"server": {"port": 2}})
    assert (settings.server.port, settings.server.host) == (2, "h")
    assert settings.members.render == ("http://r",)
    assert settings.members.decode == ("http://d",)


def test_merging_lays_sections_over_each_other() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2]}) == {
        "a": {"b": 3, "c": 2},
        "d": [2],
    }


def test_secrets_are_redacted_and_the_digest_depends_on_values() -> None:
    settings = Settings.model_validate({"members": {"engine_api_key": "hush"}})
    assert "hush" not in json.dumps(settings.redacted())
    assert "hush" not in repr(settings)
    assert Settings().digest() == Settings().digest()
    assert Settings().digest() != Settings.model_validate({"server": {"port": 1}}).digest()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no render members"),
        (["--render", "http://r"], "no decode members"),
        (["--render", "r", "--decode", "http://d"], "members.render"),
        (["--config", "/nope.toml"], "/nope.toml"),
        (["--render", "r", "--decode", "d"], "members.decode.0: must be an http or https URL"),
        (["--render", "http://r", "--decode", "http://d", "--log-level", "loud"], "log_level"),
    ],
)
def test_serve_says_what_is_wrong(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert complaint in result.output
    [line] = result.output.splitlines()
    assert line.startswith("pd-orchestrator: ")
    assert "pydantic" not in line


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://:hush@store:6379", "must begin with one of redis://, rediss://, unix://"),
        ("redis://:hush@store:hush", "is not the URL of a store"),
        ("redis://:hush@store?hush=1", "is not the URL of a store"),
    ],
)
def test_a_store_that_cannot_be_asked_is_refused_and_its_url_not_repeated(
    tmp_path: Path, url: str, complaint: str
) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"store": {"url": url}}))
    result = CliRunner().invoke(app, ["serve", "--config", str(config)])
    assert result.exit_code == 2
    assert f"store.url: {complaint}" in result.output
    assert "hush" not in result.output


def test_serving_needs_neither_numpy_nor_the_demo() -> None:
    code = (
        "import sys; import orchestrator.cli, orchestrator.server.app;"
        "heavy = ('numpy', 'openai', 'gguf', 'tokenizers', 'render_tier.core', 'redis');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_docs_name_every_metric() -> None:
    services = Services(Settings())
    text = services.metrics.exposition().decode()
    await services.close()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP ")}
    page = (ROOT / "docs" / "orchestrator.md").read_text(encoding="utf-8")
    assert not [name for name in names if not name.endswith("_created") and f"`{name}`" not in page]


def test_a_body_that_is_taken_fits_the_render_tier_together_with_what_derender_needs() -> None:
    ids_of_a_million_tokens = 8 * 2**20
    assert Settings().limits.body_bytes + ids_of_a_million_tokens <= RenderSettings(model="m").max_body_bytes


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ({"client_features": True}, "any client could give an image another's name"),
        ({"encoded_images": "metadata"}, "no more than the metadata of what it is sent the name of"),
    ],
)
def test_images_are_not_named_where_a_name_may_stand_for_something_else(
    policy: dict[str, Any], complaint: str
) -> None:
    Settings.model_validate({"policy": policy})
    with pytest.raises(ValidationError, match=complaint):
        Settings.model_validate({"policy": policy | {"known_images": "named"}})
