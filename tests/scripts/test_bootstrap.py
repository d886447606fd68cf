"""When `scripts/bootstrap.py` may trust an environment, and when it must make it anew."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, for a repository of its own."""
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.fixture
def environment(bootstrap: ModuleType, tmp_path: Path) -> Any:
    """What a finished run with `dev` leaves, but with the tests' interpreter and no packages."""
    made = bootstrap.Environment(tmp_path / ".venv")
    (made.directory / "bin").mkdir(parents=True)
    made.python.symlink_to(sys.executable)
    (made.directory / "bin" / "pip").write_text(f"#!{made.python}\n")
    made.stamp.write_text(json.dumps({"key": made.key(), "extra": "dev"}))
    return made


def test_a_stamped_environment_is_complete_for_its_extra_and_what_that_includes(environment: Any) -> None:
    assert environment.complete("dev")
    assert environment.complete("demo")


def test_demo_does_not_include_dev(environment: Any) -> None:
    environment.stamp.write_text(json.dumps({"key": environment.key(), "extra": "demo"}))
    assert environment.complete("demo")
    assert not environment.complete("dev")


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_inputs_make_it_incomplete(name: str, environment: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_text("# changed\n")
    assert not environment.complete("dev")


def test_an_interrupted_installation_makes_it_incomplete(environment: Any) -> None:
    environment.marker.touch()
    assert not environment.complete("dev")


@pytest.mark.parametrize("stamp", ["", "{", "[]", "null", '{"key": 1}'])
def test_a_damaged_stamp_counts_as_none(stamp: str, environment: Any) -> None:
    environment.stamp.write_text(stamp)
    assert not environment.complete("dev")


def test_a_vanished_interpreter_makes_it_incomplete(
    bootstrap: ModuleType, environment: Any, tmp_path: Path
) -> None:
    environment.python.unlink()
    environment.python.symlink_to(tmp_path / "gone")
    assert not environment.complete("dev")
    assert bootstrap.version_of(environment.python) is None


def test_a_moved_environment_is_noticed(bootstrap: ModuleType, environment: Any, tmp_path: Path) -> None:
    assert not environment.moved()
    environment.directory.rename(tmp_path / "elsewhere")
    moved = bootstrap.Environment(tmp_path / "elsewhere")
    assert moved.moved()
    assert not moved.complete("dev")
