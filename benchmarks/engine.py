"""Prefill and decode speed of the embedded engine beside a vLLM tokens-only engine on the CPU, one after
the other.

Both run SmolLM2-135M in float32 on all cores and are called over the same wire. Prompts are random IDs,
different in each call, so that no prefix cache helps. Decode speed is counted from the first to the last
streamed token.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.measure import cpu_seconds, machine, median, print_table
from tests.support import vllm
from tests.support.processes import ServerProcess, engine_server

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = ROOT / ".cache" / "models" / "smollm2"
PATH = "/inference/v1/generate"


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

    def prefill(self, length: int, repeat: int) -> Speed:
        self.client.post(PATH, json=self.body(length, 1, False)).raise_for_status()
        times = []
        cpu = cpu_seconds(self.server.pid)
        for _ in range(repeat):
            started = time.perf_counter()
            self.client.post(PATH, json=self.body(length, 1, False)).raise_for_status()
            times.append(time.perf_counter() - started)
        used = cpu_seconds(self.server.pid) - cpu
        return Speed(length / median(times), used / repeat / length * 1e3)

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


def measure(server: ServerProcess, prompts: list[int], tokens: int, repeat: int) -> dict[str, Speed]:
    with server:
        load = Load(server)
        with load.client:
            load.decode(1, 8)
            speeds = {f"prefill, {length} tokens": load.prefill(length, repeat) for length in prompts}
            for batch in (1, 4):
                runs = sorted((load.decode(batch, tokens) for _ in range(repeat)), key=lambda run: run.rate)
                speeds[f"decode, batch {batch}"] = runs[len(runs) // 2]
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", default="128,512,2000", help="prompt lengths for prefill")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a decode run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of our engine; vLLM takes all cores"
    )
    arguments = parser.parse_args()
    prompts = [int(length) for length in arguments.prompts.split(",")]
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        options = ("--served-model-name", "smollm2", "--threads", str(arguments.threads))
        ours_server = engine_server("--model", SMOLLM2, *options, log_dir=logs)
        ours = measure(ours_server, prompts, arguments.tokens, arguments.repeat)
        peer_server = vllm.engine(SMOLLM2, "smollm2", "--no-enable-prefix-caching", log_dir=logs)
        peer = measure(peer_server, prompts, arguments.tokens, arguments.repeat)
    rows = [
        [
            name,
            f"{speed.rate:.1f}",
            f"{peer[name].rate:.1f}",
            f"{speed.rate / peer[name].rate:.2f}x",
            f"{speed.cpu:.2f}",
            f"{peer[name].cpu:.2f}",
        ]
        for name, speed in ours.items()
    ]
    header = [
        "what",
        "ours, tokens/s",
        "vLLM, tokens/s",
        "ours / vLLM",
        "ours, CPU ms a token",
        "vLLM, CPU ms a token",
    ]
    print_table("SmolLM2-135M, float32", header, rows)


if __name__ == "__main__":
    main()
