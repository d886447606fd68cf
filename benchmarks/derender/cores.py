"""One core for the server that is measured, the others for its clients; and waiting until it has settled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.processes import ServerProcess


def server_core() -> set[int]:
    return {min(os.sched_getaffinity(0))}


def client_cores() -> set[int]:
    """All but the server's, where there are others."""
    return set(sorted(os.sched_getaffinity(0))[1:]) or server_core()


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def before_others(pid: int, rank: int) -> None:
    """Let a process and its threads run before all that is not measured, and before those of lower rank.
    Needs the right to it; meant for times on a machine that is shared."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(rank))


def settled(server: ServerProcess, within: float = 120.0) -> None:
    """Wait until a render tier has loaded all that it loads beside its first requests."""
    until = time.monotonic() + within
    while "render_tier_tokenizer_engine{" not in _metrics(server):
        if time.monotonic() > until:
            raise TimeoutError("the render tier has not settled")
        time.sleep(0.2)


def _metrics(server: ServerProcess) -> str:
    return httpx.get(server.url + "/metrics", trust_env=False, timeout=60.0).text
