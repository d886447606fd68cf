"""A real Redis (or Valkey) for a test: on a socket file, with a password, nothing written to disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PASSWORD = "the-stores-password"  # of a server that only the test can reach
PROGRAMS = ("redis-server", "valkey-server")


@dataclass
class RedisServer:
    socket: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"unix://:{PASSWORD}@{self.socket}"

    def stand_still(self) -> None:
        """It accepts connections and answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def redis_program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name)) is not None), None)


@contextmanager
def redis_server(program: str, directory: Path) -> Iterator[RedisServer]:
    """``directory``: with a short path, since the path of a socket may have 100 characters or so."""
    socket = directory / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--requirepass", PASSWORD, "--save", ""]
    process = subprocess.Popen(
        [program, *options, "--dir", str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = RedisServer(socket, process)
    try:
        deadline = time.monotonic() + 20
        while not socket.exists():
            assert process.poll() is None, "the store ended at its start"
            assert time.monotonic() < deadline, "the store did not start"
            time.sleep(0.01)
        yield server
    finally:
        server.end()
