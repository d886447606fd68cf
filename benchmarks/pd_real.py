"""Prefill and decode apart, on real vLLM engines over NIXL, against the same engines doing both; on the CPU.

Four ways to ask, in turn, with 1, 4 and 8 requests at a time, each with a prompt of its own:

- *P/D*: four hops, one engine prefills and the other decodes
- *both on each*: three hops, each of the same two engines prefills and decodes half of the requests
- *both on one*: three hops, one engine does everything, the other is idle
- *engines alone*: this program calls prefill and decode itself with token IDs, no services between

All share the same cores, so every way has the same CPU to use. *Added* is what in the time to the first
output is neither prefill nor the decode engine's first token: render, derender and the orchestrator. CPU is
user and system time of the processes, per request.

    make bench-pd_real                      # about 10 minutes
    make bench-pd_real ARGS=--quick         # about 3
    make bench-pd_real ARGS=--turns         # about 3: second turns alone, see benchmarks/pd_turns.py
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import pd_turns
from benchmarks.measure import cpu_seconds, machine, median, percentile, print_table
from tests.support import vllm
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server

ROOT = Path(__file__).resolve().parent.parent
MODEL, DIRECTORY = "smollm2", ROOT / ".cache" / "models" / "smollm2"
CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"
CONCURRENCY = (1, 4, 8)
APART, EACH, ONE, ALONE = "P/D", "both on each", "both on one", "engines alone"
WAYS = (APART, EACH, ONE, ALONE)
HOPS = ("render_ms", "prefill_ms", "decode_first_token_ms", "first_derender_ms", "ttft_ms")
WORDS = (
    "the harbour in winter is quiet and every boat lies under ice while gulls wait for the ferry to come home"
)


@dataclass(frozen=True)
class Stack:
    render: ServerProcess
    prefill: ServerProcess
    decode: ServerProcess
    fronts: dict[str, ServerProcess]
    """The orchestrator of each way that has one."""


@dataclass
class Sample:
    """One request: seconds to the first output, between outputs, in all; the orchestrator's own timing."""

    first: float
    gaps: list[float]
    total: float
    timing: dict[str, Any]


@dataclass
class Round:
    """All requests of one way at one concurrency. CPU seconds by process."""

    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)


@contextmanager
def stack(logs: Path) -> Iterator[Stack]:
    with ExitStack() as exits:
        pair = exits.enter_context(vllm.nixl_pair(DIRECTORY, MODEL, logs))
        render = exits.enter_context(
            render_tier_server(DIRECTORY, "--served-model-name", MODEL, log_dir=logs)
        )
        p, d = pair.prefill.url, pair.decode.url
        members = {
            APART: ("--prefill", p, "--decode", d),
            EACH: ("--decode", p, "--decode", d),
            ONE: ("--decode", d),
        }
        fronts = {
            way: exits.enter_context(
                orchestrator_server("--render", render.url, *options, log_dir=logs, name=f"front-{number}")
            )
            for number, (way, options) in enumerate(members.items())
        }
        yield Stack(render, pair.prefill, pair.decode, fronts)


class Prompts:
    """Chats of about so many tokens, no two of which begin alike, so that no prefix cache answers."""

    def __init__(self, tokens: int) -> None:
        self._words = tokens - 40  # the template's, and the words that make it unique
        self._numbers = itertools.count(1)

    def chat(self, output: int) -> dict[str, Any]:
        number = next(self._numbers)
        words = WORDS.split()
        text = " ".join(words[(number * 7 + i * (number % 5 + 1)) % len(words)] for i in range(self._words))
        return {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": f"Note {number * 7919 % 10_007}."},
                {"role": "user", "content": text},
            ],
            "temperature": 0,
            "max_tokens": output,
            "ignore_eos": True,
        }


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    response.raise_for_status()
    async for line in response.content:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            event: dict[str, Any] = json.loads(line[6:])
            assert "error" not in event, event
            yield event


async def stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any], began: float) -> Sample:
    """One stream; its first output counts from ``began``."""
    arrivals: list[float] = []
    timing: dict[str, Any] = {}
    async with session.post(url, json=body | {"stream": True}, headers={"X-PD-Timing": "1"}) as response:
        async for event in events(response):
            timing = event.get("pd_timing") or timing
            if any(_shows(choice) for choice in event["choices"]):
                arrivals.append(time.perf_counter())
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    return Sample(arrivals[0] - began, gaps, time.perf_counter() - began, timing)


def _shows(choice: dict[str, Any]) -> bool:
    return bool(choice.get("token_ids") or choice.get("delta", {}).get("content"))


Ask = Callable[[aiohttp.ClientSession, Stack, dict[str, Any]], Awaitable[Sample]]


def through(way: str) -> Ask:
    async def ask(session: aiohttp.ClientSession, servers: Stack, chat: dict[str, Any]) -> Sample:
        return await stream(session, servers.fronts[way].url + CHAT, chat, time.perf_counter())

    return ask


async def engines_alone(session: aiohttp.ClientSession, servers: Stack, chat: dict[str, Any]) -> Sample:
    async with session.post(f"{servers.render.url}{CHAT}/render", json=chat) as response:
        rendered = await response.json()
    began = time.perf_counter()
    leg = rendered | {
        "request_id": f"{rendered['request_id']}-p",
        "stream": False,
        "stream_options": None,
        "sampling_params": rendered["sampling_params"] | {"max_tokens": 1},
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    async with session.post(servers.prefill.url + GENERATE, json=leg) as response:
        response.raise_for_status()
        params = (await response.json())["kv_transfer_params"]
    return await stream(
        session, servers.decode.url + GENERATE, rendered | {"kv_transfer_params": params}, began
    )


ASK: dict[str, Ask] = {way: through(way) for way in (APART, EACH, ONE)} | {ALONE: engines_alone}


def cpu(servers: Stack, way: str) -> dict[str, float]:
    """CPU seconds so far: engines together, render tier, and the way's orchestrator."""
    front = servers.fronts.get(way)
    return {
        "engines": cpu_seconds(servers.prefill.pid) + cpu_seconds(servers.decode.pid),
        "render": cpu_seconds(servers.render.pid),
        "orchestrator": cpu_seconds(front.pid) if front else 0.0,
    }


async def play(servers: Stack, way: str, chats: list[dict[str, Any]], concurrency: int) -> Round:
    """So many requests at a time until all chats are answered."""
    result = Round()
    waiting = iter(chats)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def worker() -> None:
            for chat in waiting:
                result.samples.append(await ASK[way](session, servers, chat))

        before, began = cpu(servers, way), time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        result.seconds = time.perf_counter() - began
    result.cpu = {name: value - before[name] for name, value in cpu(servers, way).items()}
    return result


def add(total: Round, more: Round) -> None:
    total.samples += more.samples
    total.seconds += more.seconds
    for name, value in more.cpu.items():
        total.cpu[name] = total.cpu.get(name, 0.0) + value


@dataclass(frozen=True)
class Figures:
    """Of one way at one concurrency; milliseconds."""

    first: float
    first_worst: float
    gap: float
    gap_worst: float
    rate: float
    """Output tokens a second, all requests together."""

    @classmethod
    def of(cls, played: Round, output: int) -> Figures:
        gaps = [gap * 1000 for sample in played.samples for gap in sample.gaps]
        firsts = [sample.first * 1000 for sample in played.samples]
        rate = output * len(played.samples) / played.seconds
        return cls(median(firsts), percentile(firsts, 0.95), median(gaps), percentile(gaps, 0.95), rate)


def report(rounds: dict[tuple[str, int], Round], output: int) -> None:
    figures = {key: Figures.of(played, output) for key, played in rounds.items()}
    rows = []
    for (way, concurrency), played in rounds.items():
        f = figures[way, concurrency]
        each = {name: value / len(played.samples) for name, value in played.cpu.items()}
        rows.append(
            [
                *(str(concurrency), way, f"{f.first:.0f} / {f.first_worst:.0f}"),
                *(f"{f.gap:.0f} / {f.gap_worst:.0f}", f"{f.rate:.1f}", f"{each['engines']:.2f}"),
                "–" if way == ALONE else f"{each['render'] * 1000:.0f} + {each['orchestrator'] * 1000:.0f}",
            ]
        )
    header = ["at a time", "way", "TTFT ms, median / p95", "ITL ms, median / p95", "tokens/s"]
    print_table("Clients", [*header, "engines' CPU s", "render + orchestrator CPU ms"], rows)

    rows = []
    for concurrency in CONCURRENCY:
        timings = [sample.timing for sample in rounds[APART, concurrency].samples]
        hops = {name: [float(timing[name]) for timing in timings] for name in HOPS}
        added = [t["ttft_ms"] - t["prefill_ms"] - t["decode_first_token_ms"] for t in timings]
        rows.append(
            [str(concurrency), *(f"{median(hops[name]):.1f}" for name in HOPS), f"{median(added):.1f}"]
        )
    print_table(
        "Hops of P/D, median ms", ["at a time", *(name.removesuffix("_ms") for name in HOPS), "added"], rows
    )
    print()
    for concurrency in CONCURRENCY:
        for other in (EACH, ONE):
            print(verdict(concurrency, figures[APART, concurrency], other, figures[other, concurrency]))


def verdict(concurrency: int, apart: Figures, other: str, together: Figures) -> str:
    """One line: where P/D wins and where it loses."""
    ratios = {
        "TTFT": together.first / apart.first,
        "TTFT p95": together.first_worst / apart.first_worst,
        "ITL": together.gap / apart.gap,
        "ITL p95": together.gap_worst / apart.gap_worst,
        "tokens/s": apart.rate / together.rate,
    }
    won = [f"{name} {value:.2f}x" for name, value in ratios.items() if value >= 1.05]
    lost = [f"{name} {value:.2f}x" for name, value in ratios.items() if value <= 0.95]
    return (
        f"{concurrency} at a time, against {other}: P/D wins {', '.join(won) or 'nothing'}; "
        f"loses {', '.join(lost) or 'nothing'} (over 1: better)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter requests")
    parser.add_argument("--prompt", type=int, help="prompt tokens, about (256; quick: 128)")
    parser.add_argument("--output", type=int, help="output tokens (32; quick: 16)")
    parser.add_argument(
        "--rounds", type=int, help="times that each way is asked at each concurrency (3; quick: 1)"
    )
    parser.add_argument(
        "--turns", action="store_true", help="second turns, with and without KV of the first one, alone"
    )
    options = parser.parse_args()
    if options.turns:
        turns = options.rounds or (4 if options.quick else 12)
        pd_turns.report(DIRECTORY, MODEL, options.prompt or 512, options.output or 64, turns)
        return
    prompt = options.prompt or (128 if options.quick else 256)
    output = options.output or (16 if options.quick else 32)
    repeats = options.rounds or (1 if options.quick else 3)
    prompts = Prompts(prompt)
    print(machine())
    print(f"SmolLM2-135M in float32, prompts of about {prompt} tokens, {output} output tokens")
    rounds = {(way, concurrency): Round() for concurrency in CONCURRENCY for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="pd-real-") as scratch, stack(Path(scratch)) as servers:
        for way in WAYS:  # connections, handshakes, lazily made things
            asyncio.run(play(servers, way, [prompts.chat(4) for _ in range(4)], 2))
        for _ in range(repeats):
            for concurrency in CONCURRENCY:
                for way in WAYS:
                    chats = [prompts.chat(output) for _ in range(max(4, 2 * concurrency))]
                    add(rounds[way, concurrency], asyncio.run(play(servers, way, chats, concurrency)))
                    print(".", end="", flush=True)
    print()
    report(rounds, output)
    print(f"\nload at the end: {machine().rpartition('load ')[2]}")


if __name__ == "__main__":
    main()
