"""Fetching models: pinned, atomic, idempotent. Archives are made here; no network."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"an archive"


@pytest.fixture(scope="module")
def fetch_models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_models", ROOT / "scripts" / "fetch_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fetch_models"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(fetch_models: ModuleType) -> Callable[..., Any]:
    """A source whose archive is ``content``; counts its downloads in ``downloads``."""

    def make(content: bytes = CONTENT, *, recipe: int = 1, fails: bool = False) -> Any:
        downloads: list[Path] = []

        def download(directory: Path) -> None:
            downloads.append(directory)
            (directory / "a.zip").write_bytes(content)

        def build(archive: Path, directory: Path) -> None:
            directory.mkdir()
            (directory / "model").write_bytes(archive.read_bytes() + str(recipe).encode())
            if fails:
                raise OSError("disk full")

        made = fetch_models.Source(
            archive="a.zip",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            recipe=recipe,
            download=download,
            build=build,
        )
        return made, downloads

    return make


def test_a_second_run_does_nothing(fetch_models: ModuleType, source: Any, tmp_path: Path) -> None:
    made, downloads = source()
    assert fetch_models.fetch("m", made, tmp_path)
    assert (tmp_path / "m" / "model").read_bytes() == CONTENT + b"1"
    assert not fetch_models.fetch("m", made, tmp_path)
    assert len(downloads) == 1


def test_another_digest_is_refused_and_leaves_nothing(
    fetch_models: ModuleType, source: Any, tmp_path: Path
) -> None:
    made, _ = source(b"another archive")
    with pytest.raises(fetch_models.FetchError, match="SHA-256"):
        fetch_models.fetch("m", made, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_failed_build_leaves_what_was_there(fetch_models: ModuleType, source: Any, tmp_path: Path) -> None:
    fetch_models.fetch("m", source()[0], tmp_path)
    with pytest.raises(OSError, match="disk full"):
        fetch_models.fetch("m", source(recipe=2, fails=True)[0], tmp_path)
    assert (tmp_path / "m" / "model").read_bytes() == CONTENT + b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "m"]


def test_what_is_incomplete_or_of_another_recipe_is_replaced(
    fetch_models: ModuleType, source: Any, tmp_path: Path
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "stale").touch()
    fetch_models.fetch("m", source()[0], tmp_path)
    assert not (tmp_path / "m" / "stale").exists()
    assert fetch_models.fetch("m", source(recipe=2)[0], tmp_path)
    assert (tmp_path / "m" / "model").read_bytes() == CONTENT + b"2"


def test_an_archive_of_another_name_is_refused(fetch_models: ModuleType, tmp_path: Path) -> None:
    made = fetch_models.Source(
        archive="a.zip",
        sha256="0",
        recipe=1,
        download=lambda directory: (directory / "b.zip").touch(),
        build=lambda archive, directory: None,
    )
    with pytest.raises(fetch_models.FetchError, match=r"expected a\.zip, the registry gave b\.zip"):
        fetch_models.fetch("m", made, tmp_path)


def test_processes_that_fetch_at_the_same_time_download_once(
    fetch_models: ModuleType, source: Any, tmp_path: Path
) -> None:
    made, downloads = source()
    threads = [threading.Thread(target=fetch_models.fetch, args=("m", made, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1


def test_a_command_that_fails_says_what_it_said(fetch_models: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(fetch_models.FetchError, match="no such package"):
        fetch_models.run([sys.executable, "-c", "raise SystemExit('no such package')"], tmp_path)
    with pytest.raises(fetch_models.FetchError, match="is not installed"):
        fetch_models.run(["surely-no-such-program"], tmp_path)


def test_errors_are_one_line_and_status_1(
    fetch_models: ModuleType, source: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(fetch_models, "SOURCES", {"m": source(b"other")[0]})
    assert fetch_models.main(["m", "--dest", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("cannot fetch m: a.zip: SHA-256 is")


def test_qwen3_has_what_the_model_publishes(qwen3_dir: Path) -> None:
    config = json.loads((qwen3_dir / "config.json").read_text())
    generation = json.loads((qwen3_dir / "generation_config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["max_position_embeddings"]) == (
        "qwen3",
        151936,
        40960,
    )
    assert generation["eos_token_id"] == [151645, 151643]
    assert [generation[key] for key in ("temperature", "top_p", "top_k")] == [0.6, 0.95, 20]
