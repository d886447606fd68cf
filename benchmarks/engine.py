"""Prefill and decode speed of the embedded engine beside a vLLM tokens-only engine on the CPU.

Both run SmolLM2-135M in float32 on the same cores with as many threads, stand ready together and are called
in turn over the same wire, so that what else the machine does hits both alike. Prompts are random IDs,
different in each call, so that no prefix cache helps. A prefill run is one call, or several calls of a short
prompt one after the other, from the request to the answer with the first token. Decode speed is counted from
the first to the last streamed token.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.measure import cpu_seconds, machine, median, print_table
from tests.support import vllm
from tests.support.processes import ServerProcess, engine_server

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = ROOT / ".cache" / "models" / "smollm2"
PATH = "/inference/v1/generate"
PREFILL_TOKENS = 512
"""Prompt tokens of a prefill run, if one call does not have as many."""


@dataclass(frozen=True)
class Speed:
    """Tokens a second of wall time, and CPU milliseconds a token."""

    rate: float
    cpu: float


class Load:
    """Calls to one engine."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client = httpx.Client(base_url=server.url, timeout=600, trust_env=False)
        self.draw = random.Random(5)

    def body(self, prompt: int, tokens: int, stream: bool) -> dict[str, object]:
        ids = [self.draw.randrange(3, 49_000) for _ in range(prompt)]
        sampling = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}
        return {"model": "smollm2", "token_ids": ids, "sampling_params": sampling, "stream": stream}

    def prefill(self, length: int) -> Speed:
        bodies = [self.body(length, 1, False) for _ in range(max(1, PREFILL_TOKENS // length))]
        cpu, started = cpu_seconds(self.server.pid), time.perf_counter()
        for body in bodies:
            self.client.post(PATH, json=body).raise_for_status()
        seconds = time.perf_counter() - started
        tokens = length * len(bodies)
        return Speed(tokens / seconds, (cpu_seconds(self.server.pid) - cpu) / tokens * 1e3)

    def decode(self, batch: int, tokens: int) -> Speed:
        """All sequences start together; the rate is that of the tokens after each one's first."""
        firsts, lasts, counts = [0.0] * batch, [0.0] * batch, [0] * batch

        def one(number: int, body: dict[str, object]) -> None:
            with self.client.stream("POST", PATH, json=body) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    got = len(choices[0]["token_ids"]) if choices else 0
                    if got and not counts[number]:
                        firsts[number] = time.perf_counter()
                    counts[number] += got
                    lasts[number] = time.perf_counter()

        bodies = [self.body(32, tokens, True) for _ in range(batch)]
        threads = [threading.Thread(target=one, args=pair) for pair in enumerate(bodies)]
        cpu = cpu_seconds(self.server.pid)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used = cpu_seconds(self.server.pid) - cpu
        assert counts == [tokens] * batch, counts
        return Speed((sum(counts) - batch) / (max(lasts) - min(firsts)), used / sum(counts) * 1e3)


Measurement = Callable[[Load], Speed]


def measurements(prompts: list[int], tokens: int) -> dict[str, Measurement]:
    return {
        **{f"prefill, {n} tokens": functools.partial(Load.prefill, length=n) for n in prompts},
        **{f"decode, batch {n}": functools.partial(Load.decode, batch=n, tokens=tokens) for n in (1, 4)},
    }


def row(name: str, ours: list[Speed], peer: list[Speed]) -> list[str]:
    """Medians of the speeds and of the ratios of neighbouring runs; the ratio of the best runs, which what
    else the machine does disturbed least; CPU times of the cheapest runs."""
    cells = [name, *(f"{median(speed.rate for speed in speeds):.1f}" for speeds in (ours, peer))]
    ratios = [mine.rate / its.rate for mine, its in zip(ours, peer, strict=True)]
    cells += [f"{median(ratios):.2f}x", f"{min(ratios):.2f}-{max(ratios):.2f}x"]
    best, peers_best = (max(speed.rate for speed in speeds) for speeds in (ours, peer))
    cells += [f"{best / peers_best:.2f}x"]
    return cells + [f"{min(speed.cpu for speed in speeds):.2f}" for speeds in (ours, peer)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", default="35,128,512,2000", help="prompt lengths for prefill")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a decode run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cores", type=int, help="how many cores both use; default: all")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    os.sched_setaffinity(0, cores)  # servers inherit it
    chosen = measurements([int(length) for length in arguments.prompts.split(",")], arguments.tokens)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        logs, threads = Path(directory), len(cores)
        servers = (
            engine_server("--model", SMOLLM2, "--served-model-name", "smollm2", log_dir=logs),
            vllm.engine(SMOLLM2, "smollm2", "--no-enable-prefix-caching", log_dir=logs, threads=threads),
        )
        loads = [Load(stack.enter_context(server)) for server in servers]
        print(f"{machine()}; {threads} cores for each engine")
        rows = []
        for name, measure in chosen.items():
            for load in loads:
                measure(load)  # the first call of its kind does what later ones need not
            runs: list[list[Speed]] = [[], []]
            for number in range(arguments.repeat):
                for which in (0, 1) if number % 2 else (1, 0):
                    runs[which].append(measure(loads[which]))
            rows.append(row(name, *runs))
        for load in loads:
            load.client.close()
        print(f"load at the end {os.getloadavg()[0]:.1f}")
    header = [
        "what",
        "ours, tokens/s",
        "vLLM, tokens/s",
        "ours / vLLM",
        "range",
        "best / best",
        "ours, CPU ms a token",
        "vLLM, CPU ms a token",
    ]
    print_table("SmolLM2-135M, float32", header, rows)


if __name__ == "__main__":
    main()
