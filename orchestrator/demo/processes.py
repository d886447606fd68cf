"""Child processes of the demo: started in their own process group, awaited until ready, always ended."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

PR_SET_PDEATHSIG = 1
"""prctl(2)."""


class ProcessFailed(RuntimeError):
    """A child ended, or did not become ready in time; the message carries the tail of its log."""


def free_port() -> int:
    """A TCP port on the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _end_with_parent() -> None:
    """Between fork and exec: have the kernel (Linux) end this process when the demo dies uncleanly."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Child:
    """One server process. ``ready_path`` answers 200 when it can serve."""

    name: str
    command: Sequence[str]
    port: int
    log: Path
    ready_path: str = "/ready"
    env: dict[str, str] = field(default_factory=dict)
    started: float = 0.0
    ready_seconds: float | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ProcessFailed(f"{self.name} was not started")
        return self._process.pid

    def start(self) -> None:
        # Its own session: Ctrl-C in the terminal reaches only the demo, which then ends the children.
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # the demo starts its children before any thread
                env={**os.environ, **self.env},
            )

    def poll_ready(self, client: httpx.Client) -> bool:
        """True once the readiness endpoint has answered 200. ProcessFailed when the child has ended."""
        if self.ready_seconds is not None:
            return True
        if self._process is None or self._process.poll() is not None:
            raise ProcessFailed(f"{self.name} ended before it was ready:\n{self.log_tail()}")
        try:
            ready = client.get(self.url + self.ready_path, timeout=2.0).status_code == 200
        except httpx.TransportError:
            return False
        if ready:
            self.ready_seconds = time.monotonic() - self.started
        return ready

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def log_tail(self, lines: int = 20) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def wait(self, timeout: float) -> bool:
        """True when the child has ended within ``timeout`` seconds."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def stop_all(children: Sequence[Child], grace_seconds: float = 5.0) -> None:
    """End every child: SIGTERM to all, SIGKILL to those that remain after the grace period."""
    for child in reversed(children):
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    for child in reversed(children):
        if not child.wait(max(0.0, deadline - time.monotonic())):
            child.signal(signal.SIGKILL)
            child.wait(grace_seconds)
