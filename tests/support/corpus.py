"""Readers for the recorded data in `tests/conformance/data` (formats: the READMEs there)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "conformance" / "data"


@cache
def parser_cases(family: str) -> tuple[dict[str, Any], ...]:
    """The cases of one format family, e.g. `hermes_qwen3`. Shared between tests: do not change them."""
    return _read(DATA / "parsers" / f"{family}.jsonl")


@cache
def exchanges(recording: str) -> tuple[dict[str, Any], ...]:
    """One recording, e.g. `derender_stream`, in its order. Shared between tests: do not change them."""
    return _read(DATA / "exchanges" / f"{recording}.jsonl")


def _read(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line)
