"""Rules about the repository itself: import layers hold, pins are pins, and nothing names the machine it
was made on.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PINS = [
    ROOT / "constraints.txt",
    ROOT / "tests" / "vllm" / "env" / "constraints.txt",
    ROOT / "tests" / "vllm" / "lm_eval" / "constraints.txt",
    ROOT / "tests" / "deploy" / "policy" / "constraints.txt",
]
MACHINE = re.compile(rb"/(?:home|root|work|Users)/[a-z]|file://|[a-z]+://[^/\s]*(?:pypi|npmjs|pythonhosted)")


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {
        str(canonicalize_name(name)): version for name, _, version in (line.partition("==") for line in lines)
    }


def test_import_layers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    assert lint_imports(cache_dir=None) == 0, "run .venv/bin/lint-imports"


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.parent.name)
def test_constraints_are_names_with_one_exact_version(path: Path) -> None:
    for name, version in pins(path).items():
        assert re.fullmatch(r"[0-9][0-9A-Za-z.!+]*", version), f"{name}: {version}"


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(line) for line in project["dependencies"] + extras["demo"] + extras["dev"]]
    pinned = pins(ROOT / "constraints.txt")
    for requirement in wanted:
        name = str(canonicalize_name(requirement.name))
        if name != project["name"]:
            assert requirement.specifier.contains(pinned[name]), requirement


def test_no_file_names_a_machine_or_a_registry() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:  # an unpacked archive is not a checkout
        files = [path for folder in ("docs", "scripts", "tests") for path in (ROOT / folder).rglob("*")]
    else:
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    found = {
        str(path.relative_to(ROOT)): match.group().decode()
        for path in files
        if path.is_file() and path != Path(__file__) and (match := MACHINE.search(path.read_bytes()))
    }
    assert not found
