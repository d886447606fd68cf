"""Limits of keys that hold for all workers of a server: through real files, threads and processes."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.core.keys import Grant
from orchestrator.server.accounts import OwnAccount, account_of


def grant(concurrent: int | None = None, per_minute: int | None = None) -> Grant:
    return Grant("k", "t", None, concurrent, per_minute)


def test_workers_count_together(tmp_path: Path) -> None:
    one, other = (account_of(grant(concurrent=2), tmp_path) for _ in range(2))
    assert [one.begin(0.0), other.begin(0.0), one.begin(0.0), other.begin(0.0)] == [0, 0, math.inf, math.inf]
    other.end()
    assert [one.begin(0.0), other.begin(0.0)] == [0, math.inf]


def test_no_more_begin_at_the_same_time_than_the_rate_allows(tmp_path: Path) -> None:
    def begin(_worker: int) -> list[float]:
        account = account_of(grant(per_minute=60), tmp_path)
        return [account.begin(5.0) for _ in range(40)]

    with ThreadPoolExecutor(4) as workers:
        waits = [wait for some in workers.map(begin, range(4)) for wait in some]
    assert waits.count(0) == 60


def test_keys_and_their_limits_are_counted_apart(tmp_path: Path) -> None:
    grants = [grant(per_minute=1), grant(per_minute=2), Grant("other", "t", None, None, 1)]
    assert [account_of(each, tmp_path).begin(0.0) for each in grants] == [0, 0, 0]


def test_a_worker_that_was_killed_has_nothing_under_way(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from orchestrator.core.keys import Grant;"
        "from orchestrator.server.accounts import account_of;"
        f"print(account_of(Grant('k', 't', None, 1, None), Path({str(tmp_path)!r})).begin(0.0), flush=True);"
        "input()"
    )
    account = account_of(grant(concurrent=1), tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "0.0\n"
        assert account.begin(0.0) == math.inf
        worker.kill()
        worker.wait()
    assert account.begin(0.0) == 0


def test_without_the_file_a_worker_counts_alone(tmp_path: Path) -> None:
    account = account_of(grant(concurrent=1), tmp_path / "gone")
    assert [account.begin(0.0), account.begin(0.0)] == [0, math.inf]
    account.end()
    assert account.begin(0.0) == 0


def test_what_has_no_limit_or_no_company_needs_no_file(tmp_path: Path) -> None:
    assert isinstance(account_of(grant(), tmp_path), OwnAccount)
    assert isinstance(account_of(grant(concurrent=1), None), OwnAccount)
