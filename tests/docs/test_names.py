"""What the docs name exists: files, settings, metrics, and the messages by which the FAQ is searched."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from orchestrator.settings import Settings
from render_tier.protocol.errors import STATUS_TYPES
from tests.support.documented import PAGES, PROGRAMS, ROOT, prose

FOLDERS = ("benchmarks", "deploy", "docs", "examples", "orchestrator", "render_tier", "scripts", "tests")
PATH = re.compile(r"[\w./*{},-]+/[\w.*{},-]+\.(?:py|md|sh|toml|yaml|yml|json|lock|jsonl)")


def quoted(page: Path) -> Iterator[str]:
    """What stands in backticks in its text."""
    for code in re.findall(r"`([^`]+)`", prose(page)):
        yield " ".join(code.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    for code in quoted(page):
        name = code.partition("::")[0]
        if PATH.fullmatch(name) and not name.startswith(("/", "~", ".cache")):
            assert list(ROOT.glob(name)) or any(list((ROOT / folder).rglob(name)) for folder in FOLDERS), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_of_the_orchestrator_exist(page: Path) -> None:
    defaults = Settings.model_validate({}).model_dump()
    for code in quoted(page):
        section, dot, name = code.partition("=")[0].strip().partition(".")
        if dot and section in defaults and re.fullmatch(r"[a-z_]+", name):
            assert name in defaults[section], code


@cache
def messages() -> str:
    """All texts of the two packages, a line each; what they put in is dots."""
    found = []
    for path in (
        path for folder in ("orchestrator", "render_tier") for path in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_messages_of_the_faq_are_said() -> None:
    page = ROOT / "docs" / "faq.md"
    said = [code for code in quoted(page) if " " in code and code.split()[0] not in PROGRAMS]
    assert len(said) >= 3
    for message in said:
        assert message in messages(), message


def test_types_of_errors_of_the_faq_exist() -> None:
    named = {code for code in quoted(ROOT / "docs" / "faq.md") if code.endswith("Error")}
    assert named
    assert named <= set(STATUS_TYPES.values())
