"""What the orchestrator adds to its hops: time to first token, time between tokens, CPU.

Real processes on this machine: the render tier (Qwen3 tokenizer), a scripted prefill and a scripted decode
engine that play tokens at a fixed pace, and one orchestrator process. The *plain path* does the same four
hops from the client itself, one after the other, derender once per engine chunk: the sum of the hops.
Both are driven by the same client in turn, so that what else the machine does hits both alike.

CPU is the orchestrator process's own time, at two lengths of answer: the difference is the cost of a streamed
token, the rest the cost of a request. `--router PATH` also measures `vllm-router` (its `vllm-router` command,
installed elsewhere) in P/D mode; it routes the generate hops alone, without render and derender.

    python -m benchmarks.orchestrator --quick      # under 4 minutes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.measure import cpu_seconds, machine, median, percentile, print_table
from tests.support.processes import (
    ServerProcess,
    engine_server,
    orchestrator_server,
    render_tier_server,
)

ROOT = Path(__file__).resolve().parent.parent
QWEN3 = ROOT / ".cache" / "models" / "qwen3"
CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"
MODEL = "qwen3"
PLAYED = [9707, 11, 1879, 0, 358, 2776, 264, 1352]
"""Token IDs of ordinary words, played over and over."""
TOKENS_PER_SECOND = 800
"""Of all streams together; what one Python engine process can play while the machine does other things."""


@dataclass
class Sample:
    """What a client saw of one stream: seconds."""

    first: float
    gaps: list[float] = field(default_factory=list)


def chat(tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me about the harbour in winter. " * 8}],
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
    }


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    response.raise_for_status()
    async for line in response.content:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            yield line[6:]


class Marks:
    """Turns arrivals into a sample."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.sample: Sample | None = None

    def arrived(self) -> None:
        now = time.perf_counter()
        if self.sample is None:
            self.sample = Sample(now - self.began)
        else:
            self.sample.gaps.append(now - self.last)
        self.last = now

    def done(self) -> Sample:
        assert self.sample is not None, "no output"
        return self.sample


@dataclass
class Servers:
    render: ServerProcess
    prefill: ServerProcess
    decode: ServerProcess
    orchestrator: ServerProcess
    router: ServerProcess | None


Ask = Callable[[aiohttp.ClientSession, Servers, int], Awaitable[Sample]]


async def through_orchestrator(session: aiohttp.ClientSession, servers: Servers, tokens: int) -> Sample:
    marks = Marks()
    async with session.post(servers.orchestrator.url + CHAT, json=chat(tokens)) as response:
        async for event in events(response):
            if b'"content":"' in event:
                marks.arrived()
    return marks.done()


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> Any:
    async with session.post(url, json=body) as response:
        response.raise_for_status()
        return await response.json()


async def plain_path(session: aiohttp.ClientSession, servers: Servers, tokens: int) -> Sample:
    marks = Marks()
    request = chat(tokens)
    rendered = await post(session, f"{servers.render.url}{CHAT}/render", request)
    prefill = rendered | {
        "stream": False,
        "sampling_params": rendered["sampling_params"] | {"max_tokens": 1, "ignore_eos": True},
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    params = (await post(session, servers.prefill.url + GENERATE, prefill))["kv_transfer_params"]
    decode = rendered | {"stream": True, "kv_transfer_params": params}
    full = {"chat_request": request, "prompt_token_ids": rendered["token_ids"]}
    known: dict[str, Any] = full
    state = None
    async with session.post(servers.decode.url + GENERATE, json=decode) as response:
        async for event in events(response):
            chunk = json.loads(event)
            if not chunk["choices"]:
                continue
            call = {"stream": True, "model": MODEL, "generate_chunk": chunk, "stream_state": state} | known
            answer = await post(session, f"{servers.render.url}{CHAT}/derender", call)
            state = answer["stream_state"]
            known = {"context": answer["derender"]["context"]}
            marks.arrived()
    return marks.done()


async def through_router(session: aiohttp.ClientSession, servers: Servers, tokens: int) -> Sample:
    """Token IDs in, token IDs out: hops 2 and 3 only."""
    assert servers.router is not None
    marks = Marks()
    rendered = await post(session, f"{servers.render.url}{CHAT}/render", chat(tokens))
    async with session.post(servers.router.url + GENERATE, json=rendered) as response:
        async for event in events(response):
            if b'"token_ids":[' in event:
                marks.arrived()
    return marks.done()


async def load(ask: Ask, servers: Servers, streams: int, tokens: int) -> list[Sample]:
    """``streams`` at a time, started evenly over one token interval."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:

        async def one(number: int) -> Sample:
            await asyncio.sleep(number / streams * interval(streams))
            return await ask(session, servers, tokens)

        return list(await asyncio.gather(*(one(number) for number in range(streams))))


def interval(streams: int) -> float:
    return max(0.01, streams / TOKENS_PER_SECOND)


@dataclass
class Figures:
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    cpu: dict[int, float] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)

    def per_token(self) -> float:
        """CPU seconds, from the two lengths."""
        (few, low), (many, high) = sorted((n, self.cpu[n] / self.requests[n]) for n in self.cpu)
        return (high - low) / (many - few)

    def per_request(self) -> float:
        few = min(self.cpu)
        return self.cpu[few] / self.requests[few] - few * self.per_token()


def measure(ask: Ask, servers: Servers, server: ServerProcess | None, streams: int, lengths: tuple[int, int],
            rounds: int, figures: Figures) -> None:  # fmt: skip
    for tokens in lengths:
        for _ in range(rounds):
            before = cpu_seconds(server.pid) if server is not None else 0.0
            samples = asyncio.run(load(ask, servers, streams, tokens))
            spent = cpu_seconds(server.pid) - before if server is not None else 0.0
            figures.cpu[tokens] = figures.cpu.get(tokens, 0.0) + spent
            figures.requests[tokens] = figures.requests.get(tokens, 0) + len(samples)
            figures.first += [sample.first for sample in samples]
            figures.gaps += [gap for sample in samples for gap in sample.gaps]


def row(name: str, streams: int, figures: Figures, base: Figures | None, cpu: bool) -> list[str]:
    def milliseconds(seconds: float) -> str:
        return f"{seconds * 1e3:.2f}"

    first, gaps = figures.first, figures.gaps
    added = ["-", "-", "-"]
    if base is not None:
        added = [
            milliseconds(median(first) - median(base.first)),
            milliseconds(percentile(first, 0.99) - percentile(base.first, 0.99)),
            milliseconds(median(gaps) - median(base.gaps)),
        ]
    spent = [f"{figures.per_request() * 1e3:.2f}", f"{figures.per_token() * 1e6:.0f}"] if cpu else ["-", "-"]
    return [
        str(streams),
        name,
        milliseconds(median(first)),
        milliseconds(percentile(first, 0.99)),
        *added,
        *spent,
    ]


def start(exits: ExitStack, logs: Path, streams: int, router: Path | None, extra: list[str]) -> Servers:
    script = logs / "script.json"
    script.write_text(json.dumps([{"token_ids": PLAYED * 64, "interval_ms": interval(streams) * 1e3}]))
    limits = (
        "--max-num-seqs",
        str(streams + 8),
        "--max-waiting",
        str(2 * streams),
        "--max-model-len",
        "1024",
    )
    names = ("--model", QWEN3, "--script", script, "--served-model-name", MODEL, "--log-level", "warning")
    words = (*names, *limits)
    render = exits.enter_context(render_tier_server(QWEN3, "--served-model-name", MODEL, log_dir=logs))
    prefill = exits.enter_context(engine_server(*words, role="prefill", log_dir=logs))
    decode = exits.enter_context(engine_server(*words, role="decode", log_dir=logs))
    members = ("--render", render.url, "--prefill", prefill.url, "--decode", decode.url)
    orchestrator = exits.enter_context(
        orchestrator_server(*members, "--log-level", "warning", *extra, log_dir=logs)
    )
    routing = None
    if router is not None:
        routing = ServerProcess(
            "vllm-router",
            lambda port: [
                router,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--vllm-pd-disaggregation",
                "--prefill",
                prefill.url,
                "--decode",
                decode.url,
                "--policy",
                "round_robin",
                "--prometheus-port",
                str(port + 1),
            ],
            log_dir=logs,
            ready_path="/health",
        )
        exits.enter_context(routing)
    return Servers(render, prefill, decode, orchestrator, routing)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short answers, one round: under 4 minutes")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--router", type=Path, help="the vllm-router command, to be measured beside")
    parser.add_argument("--config", type=Path, help="settings file of the orchestrator")
    options = parser.parse_args()
    lengths = (4, 28) if options.quick else (8, 200)
    extra = ["--config", str(options.config)] if options.config else []
    print(machine())
    rows = []
    for streams in options.streams:
        rounds = (20 if options.quick else 100) if streams == 1 else (1 if options.quick else 3)
        with tempfile.TemporaryDirectory() as directory, ExitStack() as exits:
            servers = start(exits, Path(directory), streams, options.router, extra)
            plain, ours, peer = Figures(), Figures(), Figures()
            for ask in (plain_path, through_orchestrator):
                asyncio.run(load(ask, servers, min(streams, 8), 4))
            measure(plain_path, servers, None, streams, lengths, rounds, plain)
            measure(through_orchestrator, servers, servers.orchestrator, streams, lengths, rounds, ours)
            rows += [
                row("plain path", streams, plain, None, False),
                row("orchestrator", streams, ours, plain, True),
            ]
            if servers.router is not None:
                measure(through_router, servers, servers.router, streams, lengths, rounds, peer)
                rows.append(row("vllm-router (hops 2, 3)", streams, peer, None, True))
    header = ["streams", "path", "TTFT p50 ms", "TTFT p99 ms", "added p50", "added p99", "added ITL p50",
              "CPU ms/request", "CPU us/token"]  # fmt: skip
    print_table("The orchestrator beside the sum of its hops", header, rows)
    print(machine())


if __name__ == "__main__":
    main()
