"""What render says of a request fits a header, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.warnings import warnings_header


@given(st.lists(st.text(max_size=40), min_size=1), st.integers(40, 400))
def test_the_first_ones_that_fit_and_how_many_more_there_are(warnings: list[str], most: int) -> None:
    header = warnings_header(warnings, most=most)
    assert len(header) <= most
    assert header.isascii()
    assert header.decode().isprintable()
    shown = json.loads(header)
    if shown != warnings:
        *first, last = shown
        assert first == warnings[: len(first)]
        assert last == f"and {len(warnings) - len(first)} more"


def test_each_of_many_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history may have one for each of its messages."""
    written, dumps = 0, json.dumps

    def counting(value: Any) -> str:
        nonlocal written
        text = dumps(value)
        written += len(text)
        return text

    monkeypatch.setattr(json, "dumps", counting)
    warnings = ["a warning"] * 10_000
    shown = json.loads(warnings_header(warnings))
    assert shown[-1] == f"and {len(warnings) - len(shown) + 1} more"
    assert written < 2 * len(dumps(warnings))
