"""`make bench-derender`, or `python -m benchmarks.derender [--quick] [--no-peer]`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.derender import cost, load
from benchmarks.derender.workload import long_model, workload
from benchmarks.measure import machine, print_table
from tests.support import vllm
from tests.support.processes import ServerProcess, render_tier_server

LONGEST = 131072


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: short streams, few samples")
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    parser.add_argument("--lengths", help="output tokens of the streams (256,1024,4096,16384)")
    parser.add_argument("--prompts", help="prompt tokens (1000,100000)")
    parser.add_argument("--streams", help="streams at once (1,20,200)")
    parser.add_argument("--pace", type=float, default=30.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, help="of each load (30)")
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.lengths = _numbers(arguments.lengths or ("256,1024" if quick else "256,1024,4096,16384"))
    arguments.prompts = _numbers(arguments.prompts or "1000,100000")
    arguments.streams = _numbers(arguments.streams or ("1,20" if quick else "1,20,200"))
    arguments.seconds = arguments.seconds or (4.0 if quick else 30.0)
    arguments.samples = [16, 256, 1000] if quick else [16, 64, 256, 640, 1024, 2048, 4096]
    arguments.calls = 3 if quick else 10
    return arguments


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


async def costs(ours: ServerProcess, peer: ServerProcess | None, options: argparse.Namespace) -> None:
    for prompt in options.prompts:
        work = workload(prompt, max(*options.lengths, *options.samples))
        # A client that sends a prompt of 100k tokens with each chunk moves gigabytes; its cost does not grow.
        limit = max(options.lengths) if prompt < 10_000 else min(options.lengths)
        ways = await cost.measure(ours, work, options.lengths, limit)
        theirs: list[tuple[int, cost.Cost]] = []
        if peer is not None:
            samples = await cost.by_sampled_calls(peer, work, options.samples, options.calls)
            theirs = [(length, cost.integrated(samples, length)) for length in options.lengths]
        cost.report(f"One stream of one-token chunks, prompt of {len(work.prompt):,} tokens", ways, theirs)


async def loads(ours: ServerProcess, peer: ServerProcess | None, options: argparse.Namespace) -> None:
    work = workload(1000, 2000)
    rows, renders = [], []
    timing = {"pace": options.pace, "seconds": options.seconds}
    alone = await load.render_alone(ours, options.seconds)
    renders.append(_render_row("ours, idle", alone, alone))
    ways: tuple[load.Way, ...] = ("all in each call", "digest", "session")
    for streams in options.streams:
        for way in ways:
            quiet = await load.run(ours, work, way, streams, renders=False, **timing)
            rows.append(quiet.row(f"ours, {way}"))
            busy = await load.run(ours, work, way, streams, renders=True, **timing)
            renders.append(_render_row(f"ours, {streams} streams, {way}", busy.renders, alone))
    if peer is not None:
        theirs = await load.render_alone(peer, options.seconds)
        renders.append(_render_row("vLLM, idle", theirs, theirs))
        for streams in options.streams[:2]:
            busy = await load.run(peer, work, "all in each call", streams, renders=True, **timing)
            rows.append(busy.row("vLLM"))
            renders.append(_render_row(f"vLLM, {streams} streams", busy.renders, theirs))
    print_table(f"Streams at {options.pace:g} tokens/s each for {options.seconds:g} s", load.HEADER, rows)
    print_table(
        "Small renders meanwhile", ["server", "count", "p50 ms", "p99 ms", "p99 against idle"], renders
    )


def _render_row(name: str, times: list[float], alone: list[float]) -> list[str]:
    p50, p99 = load.quantile(times, 0.5), load.quantile(times, 0.99)
    return [name, str(len(times)), f"{p50 * 1e3:.2f}", f"{p99 * 1e3:.2f}",
            f"{p99 / load.quantile(alone, 0.99):.2f}x"]  # fmt: skip


def main() -> None:
    options = parsed()
    print(machine())
    with tempfile.TemporaryDirectory() as directory, ExitStack() as exits:
        logs = Path(directory)
        model = long_model(logs / "long", LONGEST)
        served = ("--served-model-name", "qwen3", *vllm.RENDER_OPTIONS)
        ours = exits.enter_context(render_tier_server(model, *served, log_dir=logs))
        peer = None
        if not options.no_peer:
            peer = vllm.render(model, "qwen3", log_dir=logs)
            exits.enter_context(peer)

        async def run() -> None:
            await costs(ours, peer, options)
            await loads(ours, peer, options)

        asyncio.run(run())
    print(machine())


if __name__ == "__main__":
    main()
