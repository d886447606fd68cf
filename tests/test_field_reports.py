"""The list of field reports in docs/testing.md: every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.named_tests import missing, named_tests

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.M)
ROWS = {
    *(1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17),
    *(18, 19, 20, 22, 24, 25, 26, 27, 29, 30, 31, 32, 33, 34, 36, 37, 39, 40, 41, 43, 44),
    *(45, 46, 47, 49, 50, 52, 53, 54, 56, 58, 59, 60, 61),
    *(62, 63, 64),
}
"""Templates and request lowering; detokenization, stop strings, reasoning and tool parsers; logprobs and
token IDs. The others, which are the orchestrator's, are in `tests/faults`."""


def test_every_report_has_tests_that_exist() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    rows = ROW.findall(page.partition("## Field reports")[2].partition("\n## ")[0])
    assert {int(number) for number, _, _ in rows} == ROWS
    for number, _, tests in rows:
        named = named_tests(tests)
        assert named, f"row {number} names no test"
        assert not missing(named, ROOT / "tests" / "render_tier"), f"row {number}"
