"""What the orchestrator costs in CPU: a streamed token, a request, and how many requests a busy core carries.

Its peers are simulated (`benchmarks.simulated`) and cost little, so hundreds of streams fit on a few cores.
It and `vllm-router` (``--router PATH``; generate hops alone) meet the same engines in turn. One token to a
chunk. Engines move all their streams on in one step, as engines do that batch; ``spread`` rows have each
stream at a time of its own. CPU is the process's own (all workers), user and system:

- *per token*: in the window in which every stream runs, over the tokens that clients got in it;
- *per request*: of the whole run less its tokens, over the requests;
- *requests a second of CPU*: short answers, one after the other on every connection, over the CPU they took.

A process that always has something to do finds more tokens waiting each time it looks, which makes them
cheaper: with ``--step`` small enough the rows are those of a busy one.

    python -m benchmarks.orchestrator_cost --router PATH
    python -m benchmarks.orchestrator_cost --router PATH --streams 512 --step 40
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.measure import cpu_seconds, machine, print_table
from tests.support.processes import ServerProcess, free_port, orchestrator_server

PROMPT = list(range(1000, 1256))
SHORT = 16
"""Tokens of an answer where requests are counted."""
STEADY = {1: (10.0, 300), 64: (20.0, 200), 512: (150.0, 150)}
"""Streams: milliseconds of an engine's step, tokens of an answer."""


@dataclass
class Target:
    name: str
    server: ServerProcess
    path: str
    body: dict[str, Any]
    mark: bytes
    """Once per token in what the client gets."""

    def request(self, tokens: int) -> bytes:
        sampling = {"sampling_params": {"max_tokens": tokens}} if "token_ids" in self.body else {}
        body = json.dumps(self.body | {"max_tokens": tokens} | sampling).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Window:
    """Of one run: CPU seconds and tokens when every stream had begun and when the first had ended."""

    target: Target
    streams: int
    tokens: int = 0
    begun: int = 0
    ended: int = 0
    marks: list[tuple[float, int]] = field(default_factory=list)

    def mark(self) -> None:
        self.marks.append((cpu_seconds(self.target.server.pid), self.tokens))

    def per_token(self) -> float:
        (cpu, tokens), (later_cpu, later_tokens) = self.marks
        return (later_cpu - cpu) / (later_tokens - tokens)


class Client(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self, window: Window, request: bytes, repeats: int, over: asyncio.Future[None]) -> None:
        self._window, self._request, self._over = window, request, over
        self._left = repeats
        self._first = True
        self._tail = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        window = self._window
        seen = self._tail + data
        got = seen.count(window.target.mark) - self._tail.count(window.target.mark)
        self._tail = seen[-40:]
        window.tokens += got
        if got and self._first:
            self._first = False
            window.begun += 1
            if window.begun == window.streams:
                window.mark()
        if b"HTTP/1.1 " in data and b"HTTP/1.1 200" not in data:
            raise SystemExit(f"{window.target.name}: {data[:500]!r}")
        if b"[DONE]" not in data:
            return
        self._tail = b""
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
            return
        window.ended += 1
        if window.ended == 1:
            window.mark()
        if window.ended == window.streams:
            self._over.set_result(None)


async def run(target: Target, streams: int, tokens: int, repeats: int) -> tuple[Window, float]:
    """The window, and the CPU seconds of everything."""
    loop = asyncio.get_running_loop()
    window, over = Window(target, streams), loop.create_future()
    before = cpu_seconds(target.server.pid)
    request = target.request(tokens)
    connections = [
        await loop.create_connection(
            lambda: Client(window, request, repeats, over), "127.0.0.1", target.server.port
        )
        for _ in range(streams)
    ]
    await asyncio.wait_for(over, 600)
    spent = cpu_seconds(target.server.pid) - before
    for transport, _client in connections:
        transport.close()
    return window, spent


def targets(exits: ExitStack, logs: Path, step: float, spread: bool, options: argparse.Namespace,
            workers: int) -> list[Target]:  # fmt: skip
    def simulated(name: str, *words: str) -> ServerProcess:
        server = ServerProcess(
            name,
            lambda port: [sys.executable, "-m", "benchmarks.simulated", words[0], str(port), *words[1:]],
            log_dir=logs,
            ready_path="/health",
        )
        return exits.enter_context(server)

    pace = (str(step), *(["--spread"] if spread else []))
    render = simulated("render", "render")
    prefill, decode = simulated("prefill", "engine", *pace), simulated("decode", "engine", *pace)
    members = ("--render", render.url, "--prefill", prefill.url, "--decode", decode.url)
    words = (*members, "--log-level", "warning", "--workers", str(workers))
    ours = exits.enter_context(orchestrator_server(*words, log_dir=logs))
    chat = {"model": "simulated", "messages": [{"role": "user", "content": "Hello there"}], "stream": True}
    found = [Target("orchestrator", ours, "/v1/chat/completions", chat, b" world")]
    if options.router is not None:
        flags = ("--vllm-pd-disaggregation", "--policy", "round_robin", "--host", "127.0.0.1")
        router = ServerProcess(
            "vllm-router",
            lambda port: [options.router, *flags, "--prefill", prefill.url, "--decode", decode.url,
                          "--port", str(port), "--prometheus-port", str(free_port())],
            log_dir=logs,
            ready_path="/health",
        )  # fmt: skip
        body = {"model": "simulated", "token_ids": PROMPT, "stream": True}
        path = "/inference/v1/generate"
        found.append(
            Target("vllm-router (hops 2, 3)", exits.enter_context(router), path, body, b'"token_ids"')
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--router", type=Path, help="the vllm-router command, to be measured beside")
    parser.add_argument("--streams", type=int, nargs="+", default=list(STEADY), choices=list(STEADY))
    parser.add_argument("--step", type=float, help="milliseconds of an engine's step, for every row")
    options = parser.parse_args()
    print(machine())
    rows, rates = [], []
    for streams in options.streams:
        usual_step, tokens = STEADY[streams]
        step = options.step or usual_step
        for spread in (False, True):
            with tempfile.TemporaryDirectory() as logs, ExitStack() as exits:
                for target in targets(exits, Path(logs), step, spread, options, 1):
                    uvloop.run(run(target, min(streams, 8), 4, 1))
                    window, spent = uvloop.run(run(target, streams, tokens, 1))
                    per_token = window.per_token()
                    per_request = (spent - per_token * window.tokens) / streams
                    pace = "spread" if spread else "steps"
                    figures = [f"{per_token * 1e6:.0f}", f"{per_request * 1e3:.2f}"]
                    rows.append([str(streams), pace, target.name, *figures])
    for workers in (1, os.cpu_count() or 1):
        with tempfile.TemporaryDirectory() as logs, ExitStack() as exits:
            for target in targets(exits, Path(logs), 2.0, False, options, workers):
                uvloop.run(run(target, 8, SHORT, 4))
                window, spent = uvloop.run(run(target, 64, SHORT, 20))
                rates.append([str(workers), target.name, f"{64 * 20 / spent:.0f}"])
    print_table("CPU of streams", ["streams", "engine", "path", "us/token", "ms/request"], rows)
    print_table(f"Answers of {SHORT} tokens", ["processes", "path", "requests per CPU second"], rates)
    print(machine())


if __name__ == "__main__":
    main()
