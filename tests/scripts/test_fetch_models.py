"""Fetching models: pinned, atomic, idempotent. Archives are made here; no network."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import fetch_models, pinned

CONTENT = b"an archive"


@pytest.fixture
def source() -> Callable[..., Any]:
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

        made = pinned.Source(
            archive="a.zip",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            recipe=recipe,
            download=download,
            build=build,
        )
        return made, downloads

    return make


def test_a_second_run_does_nothing(source: Any, tmp_path: Path) -> None:
    made, downloads = source()
    assert pinned.fetch("m", made, tmp_path)
    assert (tmp_path / "m" / "model").read_bytes() == CONTENT + b"1"
    assert not pinned.fetch("m", made, tmp_path)
    assert len(downloads) == 1


def test_another_digest_is_refused_and_leaves_nothing(source: Any, tmp_path: Path) -> None:
    made, _ = source(b"another archive")
    with pytest.raises(pinned.FetchError, match="SHA-256"):
        pinned.fetch("m", made, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_failed_build_leaves_what_was_there(source: Any, tmp_path: Path) -> None:
    pinned.fetch("m", source()[0], tmp_path)
    with pytest.raises(OSError, match="disk full"):
        pinned.fetch("m", source(recipe=2, fails=True)[0], tmp_path)
    assert (tmp_path / "m" / "model").read_bytes() == CONTENT + b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "m"]


def test_what_is_incomplete_or_of_another_recipe_is_replaced(source: Any, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "stale").touch()
    pinned.fetch("m", source()[0], tmp_path)
    assert not (tmp_path / "m" / "stale").exists()
    assert pinned.fetch("m", source(recipe=2)[0], tmp_path)
    assert (tmp_path / "m" / "model").read_bytes() == CONTENT + b"2"


def test_an_archive_of_another_name_is_refused(tmp_path: Path) -> None:
    made = pinned.Source(
        archive="a.zip",
        sha256="0",
        recipe=1,
        download=lambda directory: (directory / "b.zip").touch(),
        build=lambda archive, directory: None,
    )
    with pytest.raises(pinned.FetchError, match=r"expected a\.zip, the registry gave b\.zip"):
        pinned.fetch("m", made, tmp_path)


def test_processes_that_fetch_at_the_same_time_download_once(source: Any, tmp_path: Path) -> None:
    made, downloads = source()
    threads = [threading.Thread(target=pinned.fetch, args=("m", made, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1


def test_a_command_that_fails_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(pinned.FetchError, match="no such package"):
        pinned.run([sys.executable, "-c", "raise SystemExit('no such package')"], tmp_path)
    with pytest.raises(pinned.FetchError, match="is not installed"):
        pinned.run(["surely-no-such-program"], tmp_path)


def test_errors_are_one_line_and_status_1(source: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
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
