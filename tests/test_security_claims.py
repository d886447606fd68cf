"""Every claim of docs/security.md and docs/operations.md names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.named_tests import missing, named_tests

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
THREATS = PAGE.partition("## Threats")[2].partition("\n## ")[0]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
NEEDED = {
    "forged internal headers",
    "another tenant's conversation",
    "cache probing",
    "oversized bodies and heads",
    "slow bodies and heads",
    "header smuggling",
    "key enumeration by timing",
    "secrets in logs",
    "metrics without auth",
    "output without end given to derender",
    "a template without a time limit",
    "media that contradicts its metadata",
    "n without a limit",
    "ids that nobody checked",
}
"""What the page must speak of, whatever else it does."""


def test_every_threat_has_tests_that_exist() -> None:
    rows = [row for row in ROW.findall(THREATS) if row[0] not in ("threat", "---")]
    assert {threat for threat, _, _ in rows} >= NEEDED
    for threat, _, tests in rows:
        named = named_tests(tests)
        assert named, threat
        assert not missing(named, ROOT / "tests"), threat


def test_what_operations_claims_has_tests_that_exist() -> None:
    evidence = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## Evidence")[2]
    named = named_tests(evidence)
    assert named
    assert not missing(named, ROOT / "tests")


def test_a_test_that_does_not_exist_is_noticed() -> None:
    named = named_tests("`test_security_claims.py::test_nothing_like_it`, `nowhere.py::test_x`")
    assert len(missing(named, ROOT / "tests")) == len(named) == 2
