"""Server processes for tests: started in a process group of their own, awaited until ready, always ended.

A `ServerProcess` is a context manager. Its output goes to a file, and every failure to become ready quotes
the end of that file, so that a red test explains itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import httpx

BIN = Path(sys.executable).parent
"""Where the project's console scripts are: beside the interpreter that runs the tests."""


class ServerFailed(AssertionError):
    """The server ended, or was not ready in time; the message holds the end of its output."""


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Launched(Protocol):
    """What a server needs of `subprocess.Popen`."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class ServerProcess:
    """One server: `argv(port)` is its command line, `ready_path` answers 200 once it can work.

    A port that somebody takes between `free_port` and the server's bind is tried again with another one.
    """

    def __init__(
        self,
        name: str,
        argv: Callable[[int], Sequence[str | Path]],
        *,
        log_dir: Path,
        ready_path: str = "/ready",
        ready_within: float = 60.0,
        end_within: float = 30.0,
        env: Mapping[str, str] | None = None,
        scheme: str = "http",
    ) -> None:
        self.name = name
        self.argv = argv
        self.scheme = scheme
        self.log_path = log_dir / f"{name}.log"
        self.ready_path = ready_path
        self.ready_within = ready_within
        self.end_within = end_within
        self.env = {**os.environ, **(env or {})}
        self.port = 0
        self.process: Launched | None = None
        self.started_at = 0.0
        self.ready_after = 0.0
        """Seconds from the creation of the process to the first 200 of `ready_path`."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def log(self, last: int = 6000) -> str:
        """The end of what the server has written to stdout and stderr."""
        return self.whole_log()[-last:]

    def whole_log(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def start(self, port: int | None = None) -> Self:
        """``port``: where it must listen; otherwise any free one."""
        for attempt in (1, 2, 3):
            self._spawn(port)
            try:
                self._await_ready()
            except BaseException as error:
                self.stop()
                taken = "address already in use" in self.log().lower()
                if isinstance(error, ServerFailed) and taken and attempt < 3:
                    continue
                raise
            return self
        raise AssertionError("unreachable")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _spawn(self, port: int | None) -> None:
        self.port = port or free_port()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.started_at = time.monotonic()
        self.process = self._launched([str(part) for part in self.argv(self.port)])

    def _launched(self, command: list[str]) -> Launched:
        """The leader of a process group of its own, which writes into the log."""
        with self.log_path.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )

    def _await_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + self.ready_within
        last = "no answer"
        # Whose certificate it is does not matter here.
        with httpx.Client(timeout=2.0, trust_env=False, verify=False) as client:
            while time.monotonic() < deadline:
                if (code := self.process.poll()) is not None:
                    raise ServerFailed(f"{self.name} exited with {code} before it was ready:\n{self.log()}")
                try:
                    response = client.get(self.url + self.ready_path)
                    if response.status_code == 200:
                        self.ready_after = time.monotonic() - self.started_at
                        return
                    last = f"status {response.status_code}: {response.text[:300]}"
                except httpx.TransportError as error:
                    last = f"{type(error).__name__}: {error}"
                time.sleep(0.02)
        raise ServerFailed(
            f"{self.name} was not ready within {self.ready_within:g} s (last: {last}):\n{self.log()}"
        )

    def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send `sig` to the whole process group and, for SIGKILL, wait until the leader is gone."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, sig)
        if sig == signal.SIGKILL:
            self.process.wait(self.end_within)

    def stop(self) -> int | None:
        """SIGTERM, then SIGKILL to what is left of the group. The leader's exit code; None if not running."""
        if self.process is None:
            return None
        self.kill(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.end_within)
        self.kill(signal.SIGKILL)
        code = self.process.returncode
        self.process = None
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _command(program: str, *words: str | Path) -> Callable[[int], Sequence[str | Path]]:
    """The command line of one of the project's console scripts, listening on the given port of loopback."""
    return lambda port: [BIN / program, *words, "--host", "127.0.0.1", "--port", str(port)]


def render_tier_server(
    model: Path, *options: str | Path, log_dir: Path, name: str = "render-tier", ready_within: float = 60.0
) -> ServerProcess:
    """`render-tier serve MODEL` on a free port (not started yet)."""
    argv = _command("render-tier", "serve", model, *options)
    return ServerProcess(name, argv, log_dir=log_dir, ready_within=ready_within)


def engine_server(
    *options: str | Path,
    log_dir: Path,
    role: str = "both",
    name: str | None = None,
    ready_within: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> ServerProcess:
    """`pd-orchestrator engine` on a free port (not started yet)."""
    argv = _command("pd-orchestrator", "engine", "--role", role, *options)
    return ServerProcess(
        name or f"engine-{role}",
        argv,
        log_dir=log_dir,
        ready_path="/health",
        ready_within=ready_within,
        env=env,
    )


def orchestrator_server(
    *options: str | Path, log_dir: Path, name: str = "orchestrator", ready_within: float = 60.0
) -> ServerProcess:
    """`pd-orchestrator serve` on a free port (not started yet)."""
    argv = _command("pd-orchestrator", "serve", *options)
    return ServerProcess(name, argv, log_dir=log_dir, ready_within=ready_within)
