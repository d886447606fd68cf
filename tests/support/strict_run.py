"""Options with which a run proves that it ran what it should: `--no-skips` and `--expect-tests FILE`.

`--no-skips`: a skipped test or an expected failure fails the run. `--expect-tests FILE`: every test file that
FILE names must have passed at least as many tests as it says there, so that a test that silently vanished
(deleted, renamed, deselected, never collected) fails the run; files that FILE does not name are free.
`--write-expected-tests FILE` writes FILE from what was collected.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("strict run")
    group.addoption("--no-skips", action="store_true", help="fail if any test is skipped or xfailed")
    group.addoption(
        "--expect-tests", type=Path, metavar="FILE", help="fail if fewer tests passed than it says"
    )
    group.addoption("--write-expected-tests", type=Path, metavar="FILE", help="write it from the collection")


def pytest_configure(config: pytest.Config) -> None:
    # With xdist the workers' reports reach the controller, which alone sees the whole run.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(StrictRun(config), "strict-run")


class StrictRun:
    """Counts outcomes while the tests run and turns what is missing into a failed session."""

    def __init__(self, config: pytest.Config) -> None:
        self.no_skips: bool = config.getoption("--no-skips")
        self.expect: Path | None = config.getoption("--expect-tests")
        self.write: Path | None = config.getoption("--write-expected-tests")
        self.passed: Counter[str] = Counter()
        self.skipped: list[str] = []
        self.problems: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self.write is not None:
            counts = Counter(item.nodeid.partition("::")[0] for item in session.items)
            self.write.write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(f"{report.nodeid} (whole file)")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed[report.nodeid.partition("::")[0]] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.no_skips:
            self.problems += [f"skipped or expected to fail: {node}" for node in self.skipped]
        if self.expect is not None:
            expected: dict[str, int] = json.loads(self.expect.read_text())
            self.problems += [
                f"{path}: {self.passed[path]} tests passed, {self.expect.name} expects at least {count}"
                for path, count in expected.items()
                if self.passed[path] < count
            ]
        if self.problems and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.problems:
            terminalreporter.section("tests that should have run", red=True)
            for problem in self.problems:
                terminalreporter.line(problem)
