"""Tests that a page names, as `file.py::test`: do they exist?"""

from __future__ import annotations

import re
from pathlib import Path

_NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """File and test, as they stand in ``text``."""
    return _NAMED.findall(text)


def missing(named: list[tuple[str, str]], folder: Path) -> list[str]:
    """Those that are in no file below ``folder``."""
    return [f"{file}::{name}" for file, name in named if not _exists(folder / file, name)]


def _exists(path: Path, name: str) -> bool:
    return (
        path.is_file() and re.search(rf"^ *(async )?def {name}\(", path.read_text("utf-8"), re.M) is not None
    )
