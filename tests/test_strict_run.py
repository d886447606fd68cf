"""A strict run fails for what did not run, and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SUITE = """
import pytest

def test_one(): pass
def test_two(): pass
"""
SKIPPING = SUITE + "@pytest.mark.skip\ndef test_three(): pass\n"
EXPECTED_FAILURE = SUITE + "@pytest.mark.xfail\ndef test_three(): assert False\n"


@pytest.fixture
def run(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(
        "[pytest]\naddopts = -p tests.support.strict_run -p no:cacheprovider -p no:schemathesis\n"
        "asyncio_default_fixture_loop_scope = function"
    )
    pytester.syspathinsert(Path(__file__).resolve().parent.parent)
    return pytester


def expectation(pytester: pytest.Pytester, counts: dict[str, int]) -> str:
    return str(pytester.makefile(".json", expected=json.dumps(counts)))


@pytest.mark.parametrize("suite", [SKIPPING, EXPECTED_FAILURE], ids=["skip", "xfail"])
def test_no_skips(suite: str, run: pytest.Pytester) -> None:
    run.makepyfile(test_a=suite)
    assert run.runpytest().ret == pytest.ExitCode.OK
    result = run.runpytest("--no-skips")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["skipped or expected to fail: test_a.py::test_three"])


def test_no_skips_passes_a_whole_run(run: pytest.Pytester) -> None:
    run.makepyfile(test_a=SUITE)
    assert run.runpytest("--no-skips").ret == pytest.ExitCode.OK


def test_a_missing_file_fails_the_run(run: pytest.Pytester) -> None:
    run.makepyfile(test_a=SUITE)
    file = expectation(run, {"test_a.py": 2, "test_gone.py": 1})
    result = run.runpytest("--expect-tests", file)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_gone.py: 0 tests passed, expected.json expects at least 1"])


def test_fewer_tests_fail_the_run_and_more_do_not(run: pytest.Pytester) -> None:
    run.makepyfile(test_a=SUITE)
    assert run.runpytest("--expect-tests", expectation(run, {"test_a.py": 1})).ret == pytest.ExitCode.OK
    deselected = run.runpytest("-k", "one", "--expect-tests", expectation(run, {"test_a.py": 2}))
    assert deselected.ret == pytest.ExitCode.TESTS_FAILED


def test_an_empty_run_that_should_not_be_empty_fails(run: pytest.Pytester) -> None:
    result = run.runpytest("--expect-tests", expectation(run, {"test_a.py": 1}))
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_written_file_is_what_a_run_expects(run: pytest.Pytester) -> None:
    run.makepyfile(test_a=SUITE)
    run.runpytest("--collect-only", "--write-expected-tests", "counts.json")
    assert json.loads((run.path / "counts.json").read_text()) == {"test_a.py": 2}
    assert run.runpytest("--expect-tests", "counts.json").ret == pytest.ExitCode.OK
