"""Servers of vLLM as forks of one process that has imported vLLM, which takes most of the start of one.

Only of `vllm launch render`: an engine core is a process that imports everything itself."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support import vllm
from tests.support.processes import ServerProcess

PROGRAM = Path(__file__).resolve().parents[1] / "vllm" / "fork_vllm.py"


class Fork:
    """A process that is another's child, so that nothing is known of its end but that it came."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return None if psutil.pid_exists(self.pid) else 1

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.02)
        return code


class ForkedServer(ServerProcess):
    def __init__(self, parent: subprocess.Popen[str], name: str, *words: str | Path, log_dir: Path) -> None:
        """`vllm WORDS...` on a free port of loopback (not started yet)."""
        super().__init__(
            name,
            lambda port: [*words, "--host", "127.0.0.1", "--port", str(port)],
            log_dir=log_dir,
            ready_path="/health",
            ready_within=vllm.READY_WITHIN,
        )
        self.parent = parent

    def _launched(self, command: list[str]) -> Fork:
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write(json.dumps([command, str(self.log_path)]) + "\n")
        self.parent.stdin.flush()
        answer = self.parent.stdout.readline()
        assert answer, "the process that forks has ended"
        return Fork(int(answer))


@contextmanager
def forking(scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that forks them; they put their files into ``scratch``."""
    with (
        (scratch / "forking.log").open("wb") as log,
        subprocess.Popen(
            [vllm.environment() / "bin" / "python", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | vllm.process_environment(scratch / "files"),
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
