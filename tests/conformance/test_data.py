"""The recorded data is whole, and every file of it is used by a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import corpus

FILES = sorted(path for folder in ("exchanges", "parsers") for path in (corpus.DATA / folder).glob("*.jsonl"))
"""Cases and exchanges; the other folders hold answers alone, which the corpora read with their requests."""
TESTS = Path(__file__).resolve().parent.parent


def recordings_read_by_tests() -> set[str]:
    """Names given to `parser_cases` or `exchanges`, and any `NAME.jsonl`, in the other tests."""
    names: set[str] = set()
    for path in TESTS.rglob("*.py"):
        if path == Path(__file__).resolve():
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name(id="parser_cases" | "exchanges")
                    | ast.Attribute(attr="parser_cases" | "exchanges"),
                    args=[ast.Constant(value=str(name))],
                ):
                    names.add(name)
                case ast.Constant(value=str(name)) if name.endswith(".jsonl"):
                    names.add(Path(name).stem)
    return names


def test_every_file_is_used() -> None:
    unused = {path.stem for path in FILES} - recordings_read_by_tests()
    assert not unused, f"no test calls parser_cases or exchanges with: {sorted(unused)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases_have_unique_ids_and_the_documented_fields(path: Path) -> None:
    if path.parent.name == "parsers":
        cases, fields = corpus.parser_cases(path.stem), {"format", "output_text", "expected", "source"}
    else:
        cases, fields = corpus.exchanges(path.stem), {"name", "request", "response"}
    assert cases
    assert all(fields <= case.keys() for case in cases)
    assert len({case["id"] for case in cases}) == len(cases)
