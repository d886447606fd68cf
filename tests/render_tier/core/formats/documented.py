"""The worked examples of docs/parsers.md: files with the output that they are for."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[4] / "docs" / "parsers.md"
_EXAMPLE = re.compile(
    r"`(?P<file>acme\.\w+)`[^\n]*\n\n```\w+\n(?P<source>.*?)```\n\n```text\n(?P<output>.*?)\n```", re.S
)


def documented_examples() -> list[tuple[Path, str, str]]:
    """(file name, its text, a model output) of every example."""
    found = _EXAMPLE.finditer(PAGE.read_text(encoding="utf-8"))
    return [(Path(match["file"]), match["source"], match["output"]) for match in found]
