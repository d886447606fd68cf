"""A stop that a process gets while it is forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

MASTER = """
import os, signal
from render_tier.forked_workers import keep_stops_for_workers
stop, swallowed = signal.{stop}, []
signal.signal(stop, lambda *_: swallowed.append(stop))
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), stop))
{keep}
if not (worker := os.fork()):
    os._exit(0)
_, status = os.waitpid(worker, 0)
os.kill(os.getpid(), stop)
print(os.waitstatus_to_exitcode(status) == -stop, len(swallowed))
"""


def outcome(stop: str, keep: str) -> str:
    """Whether the worker ended by it, and how many of them the master has handled itself."""
    ended = subprocess.run(
        [sys.executable, "-c", MASTER.format(stop=stop, keep=keep)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ended.stdout.strip()


@pytest.mark.parametrize("stop", ["SIGTERM", "SIGQUIT", "SIGINT"])
def test_a_worker_ends_by_a_stop_before_it_has_handlers_of_its_own(stop: str) -> None:
    assert outcome(stop, "keep_stops_for_workers()") == "True 1"


def test_without_that_it_is_lost() -> None:
    assert outcome("SIGTERM", "") == "False 1"
