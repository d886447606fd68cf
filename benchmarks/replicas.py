"""Render-tier replicas of a benchmark, and the real HAProxy before them whose servers are changed by its
runtime API, as an ingress would."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.derender.workload import QWEN3
from benchmarks.measure import cpu_seconds
from tests.support.processes import ServerProcess, render_tier_server

HAPROXY = """
global
  stats socket {socket} level admin
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  timeout check 5s
  option redispatch 1
  retries 4
  retry-on conn-failure empty-response response-timeout 503
frontend calls
  bind 127.0.0.1:{port}
  monitor-uri /balancer
  default_backend render
backend render
  balance leastconn
  option httpchk GET /ready
  server-template r 1-{slots} 127.0.0.1:1 check inter 500ms fall 2 rise 1 disabled
"""
SLOTS = 8
COUNTERS = {
    "tokens": "render_tier_prompt_tokens_total",
    "wait": "render_tier_queue_wait_seconds_sum",
}
IDLE_CORES = 0.05
"""A replica that takes less has loaded all that it loads behind its first calls."""
OPTIONS = (
    *("--served-model-name", "qwen3", "--reasoning-parser", "qwen3"),
    *("--tool-call-parser", "hermes", "--enable-auto-tool-choice"),
    *("--renderer-num-workers", "1", "--log-level", "warning"),
)


class Balancer:
    """HAProxy, told of replicas by its runtime API."""

    def __init__(self, process: ServerProcess, socket: Path) -> None:
        self.process, self._socket = process, socket
        self._free = list(range(1, SLOTS + 1))

    async def _tell(self, command: str) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        writer.write(command.encode() + b"\n")
        answer = (await reader.read()).decode().strip()
        writer.close()
        assert not answer or "changed" in answer or "no need" in answer, (command, answer)

    async def add(self, port: int) -> int:
        slot = self._free.pop(0)
        await self._tell(f"set server render/r{slot} addr 127.0.0.1 port {port}")
        await self._tell(f"set server render/r{slot} state ready")
        return slot

    async def remove(self, slot: int) -> None:
        """No new calls; those under way go on."""
        await self._tell(f"set server render/r{slot} state maint")
        self._free.append(slot)


@contextmanager
def haproxy(directory: Path) -> Iterator[Balancer]:
    program = shutil.which("haproxy")
    if program is None:
        sys.exit("haproxy is not installed (Debian: apt-get install haproxy)")
    socket, file = directory / "admin.sock", directory / "haproxy.cfg"

    def argv(port: int) -> list[str]:
        file.write_text(HAPROXY.format(socket=socket, port=port, slots=SLOTS))
        return [program, "-db", "-f", str(file)]

    with ServerProcess("haproxy", argv, log_dir=directory, ready_path="/balancer") as process:
        yield Balancer(process, socket)


@dataclass
class Replica:
    process: ServerProcess
    slot: int = 0
    ready: bool = False
    totals: dict[str, float] = field(default_factory=dict)
    """Of each signal, when last looked at."""

    @property
    def cpu(self) -> float:
        return self.totals.get("cpu", 0.0)


class Deployment:
    """Keeps so many replicas; a lost one is replaced. Starts and ends happen in threads."""

    def __init__(self, balancer: Balancer, directory: Path) -> None:
        self._balancer, self._directory = balancer, directory
        self.replicas: list[Replica] = []
        self.cpu = 0.0
        """Of replicas that are gone."""
        self._started = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.ready]

    def want(self, count: int) -> None:
        while len(self.replicas) < count:
            self._started += 1
            process = render_tier_server(
                QWEN3,
                *OPTIONS,
                log_dir=self._directory,
                name=f"replica-{self._started}",
            )
            replica = Replica(process)
            self.replicas.append(replica)
            self._spawn(self._start(replica))
        for replica in self.ready[: len(self.replicas) - count]:
            self.drain(replica)

    def drain(self, replica: Replica) -> None:
        replica.ready = False
        self.replicas.remove(replica)
        self._spawn(self._end(replica))

    async def kill(self, replica: Replica) -> None:
        """Without warning; the balancer finds out by itself."""
        replica.ready = False
        self.cpu += replica.cpu
        self.replicas.remove(replica)
        await asyncio.to_thread(replica.process.kill)
        await asyncio.sleep(1)
        await self._balancer.remove(replica.slot)

    async def _start(self, replica: Replica) -> None:
        await asyncio.to_thread(replica.process.start)
        if replica in self.replicas:
            # What the start took is no load.
            replica.totals = {"tokens": 0.0, "wait": 0.0, "cpu": cpu_seconds(replica.process.pid)}
            replica.slot = await self._balancer.add(replica.process.port)
            replica.ready = True

    async def _end(self, replica: Replica) -> None:
        await self._balancer.remove(replica.slot)
        await asyncio.sleep(0.5)  # what preStop waits for
        self.cpu += cpu_seconds(replica.process.pid)
        await asyncio.to_thread(replica.process.stop)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def started(self) -> None:
        """All replicas that are wanted so far."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Ends all; it may be said twice."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self.replicas:
            replica = self.replicas.pop()
            if replica.process.running:
                self.cpu += cpu_seconds(replica.process.pid)
            await asyncio.to_thread(replica.process.stop)


async def totals_of(session: aiohttp.ClientSession, replica: Replica) -> dict[str, float]:
    async with session.get(f"{replica.process.url}/metrics") as reply:
        families = list(text_string_to_metric_families(await reply.text()))
    totals = {
        signal: sum(one.value for family in families for one in family.samples if one.name == name)
        for signal, name in COUNTERS.items()
    }
    return {**totals, "cpu": cpu_seconds(replica.process.pid)}


async def idle(replica: Replica) -> None:
    for _ in range(60):
        before = cpu_seconds(replica.process.pid)
        await asyncio.sleep(1)
        if cpu_seconds(replica.process.pid) - before < IDLE_CORES:
            return
