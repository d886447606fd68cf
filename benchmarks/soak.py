"""Half an hour of mixed traffic, and what is left of it in memory, sockets and tasks.

Real processes: render tier, a scripted prefill and a scripted decode engine with leases and KV transfer, one
orchestrator. Clients stream, ask whole, ask for several choices, stop early, send what is refused, and leave
in the middle. What the services remember by design (caches, the prefix index) is bounded; here the bounds are
small, so that they are reached soon and what still grows is a leak, but for a prefill engine's last 10,000
leases (2 MB). The first fifth is warm-up; growth is the slope of a line through the samples after it, and
through those of the last half, so that a single high sample neither hides nor makes one. At the end
everything that the orchestrator counts as under way must be zero; the exit code says whether it was.

    python -m benchmarks.soak --minutes 30
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.measure import machine, print_table
from orchestrator.server.integrity import Integrity
from tests.support.processes import ServerProcess, engine_server, orchestrator_server, render_tier_server

ROOT = Path(__file__).resolve().parent.parent
QWEN3 = ROOT / ".cache" / "models" / "qwen3"
MODEL = "qwen3"
PLAYED = [9707, 11, 1879, 0, 358, 2776, 264, 1352]
"""Token IDs of ordinary words, played over and over."""
NAMED = ("--served-model-name", MODEL, "--log-level", "warning")
EVERY = 15.0
"""Seconds between two samples."""
WARM_UP, LAST_HALF = 0.2, 0.5
"""Shares of the time after which samples count."""
UNDER_WAY = {f"pd_{counter.name}" for counter in fields(Integrity)}
ORCHESTRATOR = """
[selection]
prefix_index_blocks = 2000

[limits]
remembered_params = 1000
"""
RENDER_TIER = """
prompt_cache_bytes = 1000000
context_cache_entries = 64
stream_cache_entries = 64
"""
KINDS = ("streamed", "whole", "two choices", "stopped early", "refused", "left")


def body(kind: str, dice: random.Random) -> dict[str, Any]:
    words = " ".join(dice.choices(["harbour", "winter", "tide", "ships", "lamp"], k=dice.randrange(5, 300)))
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": dice.randrange(1, 60),
        "stream": kind in ("streamed", "left"),
        "ignore_eos": True,
    }
    if kind == "two choices":
        request["n"] = 2
    elif kind == "stopped early":
        request |= {"stop": ["world"], "stream": dice.random() < 0.5}
    elif kind == "refused":
        request["messages"] = dice.choice([[], [{"role": "user", "content": 7}], "no list"])
    return request


async def ask(session: aiohttp.ClientSession, url: str, dice: random.Random, outcomes: Counter[str]) -> None:
    kind = dice.choice(KINDS)
    async with session.post(f"{url}/v1/chat/completions", json=body(kind, dice)) as response:
        if kind == "left":
            async for _ in response.content:
                if dice.random() < 0.2:
                    response.close()
                    break
            outcomes["left" if response.status == 200 else f"left: WRONG ({response.status})"] += 1
            return
        text = await response.text()
    if kind == "refused":
        fine = response.status == 400
    elif response.headers["content-type"].startswith("text/event-stream"):
        fine = response.status == 200 and text.endswith("data: [DONE]\n\n") and '"error"' not in text
    else:
        fine = response.status == 200 and all(
            choice["finish_reason"] in ("stop", "length") for choice in json.loads(text)["choices"]
        )
    outcomes[kind if fine else f"{kind}: WRONG ({response.status})"] += 1
    if not fine:
        print(f"{time.strftime('%H:%M:%S')} {kind}: {response.status} {text[-500:]}", flush=True)


async def clients(url: str, count: int, until: float, seed: int, outcomes: Counter[str]) -> None:
    async def one(number: int) -> None:
        dice = random.Random(seed + number)
        while time.monotonic() < until:
            await ask(session, url, dice, outcomes)
            await asyncio.sleep(dice.random() * 0.5)

    limits = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*map(one, range(count)))


async def under_way(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The orchestrator's own counters of what is not finished."""
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return {words[0]: float(words[1]) for words in map(str.split, lines) if words[0] in UNDER_WAY}


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Growth per hour, by least squares; ``samples`` are (seconds, value)."""
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return 3600 * sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0


async def watch(
    servers: Sequence[ServerProcess], url: str, began: float, until: float
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    series: dict[tuple[str, str], list[tuple[float, float]]] = {}
    processes = {server.name: psutil.Process(server.pid) for server in servers}
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            at = time.monotonic() - began
            for name, process in processes.items():
                values = {
                    "resident MB": process.memory_info().rss / 1e6,
                    "open files and sockets": float(process.num_fds()),
                    "threads": float(process.num_threads()),
                }
                for what, value in values.items():
                    series.setdefault((name, what), []).append((at, value))
            for what, value in (await under_way(session, url)).items():
                series.setdefault(("orchestrator", what), []).append((at, value))
            await asyncio.sleep(EVERY)
    return series


async def idle_again(url: str, within: float) -> dict[str, float]:
    """What is still under way ``within`` seconds after the last client."""
    deadline = time.monotonic() + within
    async with aiohttp.ClientSession() as session:
        while True:
            left = {name: value for name, value in (await under_way(session, url)).items() if value}
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.5)


async def soak(servers: Sequence[ServerProcess], url: str, minutes: float, count: int, seed: int) -> bool:
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    until = began + 60 * minutes
    _, series = await asyncio.gather(
        clients(url, count, until, seed, outcomes), watch(servers, url, began, until)
    )
    rows = []
    for (name, what), samples in series.items():
        kept, last = ([s for s in samples if s[0] >= share * 60 * minutes] for share in (WARM_UP, LAST_HALF))
        if len(kept) < 3:
            continue
        values = [value for _, value in kept]
        levels = [f"{value:g}" for value in (values[0], values[-1], max(values))]
        rows.append([name, what, *levels, f"{slope(kept):+.2f}", f"{slope(last):+.2f}"])
    header = ["process", "what", "after warm-up", "at the end", "most", "growth per hour", "in the last half"]
    print_table(f"{minutes:g} minutes, {count} clients, seed {seed}", header, rows)
    print("\nAnswers: " + ", ".join(f"{kind} {number}" for kind, number in sorted(outcomes.items())))
    left = await idle_again(url, within=60)
    print(f"Under way when all clients are gone: {left or 'nothing'}")
    return not left and not any("WRONG" in kind for kind in outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as directory, ExitStack() as exits:
        logs = Path(directory)
        (logs / "orchestrator.toml").write_text(ORCHESTRATOR)
        (logs / "render-tier.toml").write_text(RENDER_TIER)
        script = logs / "script.json"
        script.write_text(json.dumps([{"token_ids": PLAYED * 64, "interval_ms": 20}]))
        engine = (
            "--model",
            QWEN3,
            "--script",
            script,
            "--served-model-name",
            MODEL,
            "--log-level",
            "warning",
        )
        servers = [
            render_tier_server(QWEN3, *NAMED, "--config", logs / "render-tier.toml", log_dir=logs),
            engine_server(*engine, role="prefill", log_dir=logs),
            engine_server(*engine, role="decode", log_dir=logs),
        ]
        render, prefill, decode = (exits.enter_context(server) for server in servers)
        members = ("--render", render.url, "--prefill", prefill.url, "--decode", decode.url)
        orchestrator = exits.enter_context(
            orchestrator_server(
                *members, "--log-level", "warning", "--config", logs / "orchestrator.toml", log_dir=logs
            )
        )
        fine = asyncio.run(
            soak([*servers, orchestrator], orchestrator.url, options.minutes, options.clients, options.seed)
        )
        print(machine())
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    main()
