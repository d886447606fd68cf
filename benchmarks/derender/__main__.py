"""`make bench-derender`, or `python -m benchmarks.derender [--quick] [--no-peer]`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.derender import aims, cost, load
from benchmarks.derender.cores import before_others, client_cores, on_cores, server_core, settled
from benchmarks.derender.workload import long_model, workload
from benchmarks.measure import machine, percentile, print_table
from tests.support import vllm
from tests.support.processes import ServerProcess, render_tier_server

LONGEST = 131072
WAYS: tuple[load.Way, ...] = ("all in each call", "digest", "session", "session in steps")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: short streams, few samples")
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    parser.add_argument("--only", choices=("costs", "loads"), help="one of the two parts")
    parser.add_argument("--lengths", help="output tokens of the streams (256,1024,4096,16384)")
    parser.add_argument("--prompts", help="prompt tokens (1000,100000)")
    parser.add_argument("--streams", help="streams at once (1,20,200)")
    parser.add_argument("--ways", default=",".join(WAYS), help="of the loads")
    parser.add_argument("--pace", type=float, default=30.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, help="of each half of a load (8)")
    parser.add_argument(
        "--before-others", action="store_true", help="run before the other processes of a shared machine"
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.lengths = _numbers(arguments.lengths or ("256,1024" if quick else "256,1024,4096,16384"))
    arguments.prompts = _numbers(arguments.prompts or "1000,100000")
    arguments.streams = _numbers(arguments.streams or ("1,20" if quick else "1,20,200"))
    arguments.seconds = arguments.seconds or (4.0 if quick else 8.0)
    arguments.samples = [16, 256, 1000] if quick else [16, 64, 256, 640, 1024, 2048, 4096]
    arguments.calls = 3 if quick else 10
    return arguments


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


async def costs(
    ours: ServerProcess, peer: ServerProcess | None, options: argparse.Namespace, goals: aims.Aims
) -> None:
    for prompt in options.prompts:
        work = workload(prompt, max(*options.lengths, *options.samples))
        # A client that sends a prompt of 100k tokens with each chunk moves gigabytes; its cost does not grow.
        limit = max(options.lengths) if prompt < 10_000 else min(options.lengths)
        ways = await cost.measure(ours, work, options.lengths, limit)
        theirs: list[tuple[int, cost.Cost]] = []
        if peer is not None:
            samples = await cost.by_sampled_calls(peer, work, options.samples, options.calls)
            theirs = [(length, cost.integrated(samples, length)) for length in options.lengths]
        size = f"{len(work.prompt):,}"
        cost.report(f"One stream of one-token chunks, prompt of {size} tokens", ways, theirs)
        for way, found in ways.items():
            if len(found) > 1:
                for name, shown in (("cpu", "CPU"), ("sent", "bytes up"), ("received", "bytes down")):
                    what = f"growth of {shown}, {way}, prompt of {size}"
                    goals.most(what, cost.exponent(found, name), aims.GROWTH, "{:.3f}")
        known = dict(theirs)
        for way in ("all in each call", "digest"):
            mine = dict(ways[way]).get(aims.AT_TOKENS)
            if mine is not None and aims.AT_TOKENS in known:
                what = f"vLLM's CPU over ours, {way}, {aims.AT_TOKENS} tokens, prompt of {size}"
                goals.least(what, known[aims.AT_TOKENS].cpu / mine.cpu, aims.TIMES_LESS)
        for length, mine in ways["session"]:
            what = f"µs a token in a session, {length} tokens, prompt of {size}"
            note = f" (quietest turn {mine.quietest * 1e6:.0f})"
            goals.most(what, mine.cpu / length * 1e6, aims.SESSION_MICROSECONDS, "{:.0f}", note)


def loads(
    ours: ServerProcess, peer: ServerProcess | None, options: argparse.Namespace, goals: aims.Aims
) -> None:
    work = workload(1000, 2000)
    rows, renders = [], []
    clients = load.Clients(before_others=options.before_others)

    def measured(server: ServerProcess, name: str, way: load.Way, streams: int) -> None:
        alone = clients.idle(server.url, options.seconds)
        job = load.Job(server.url, server.pid, work, way, streams, options.pace, options.seconds)
        busy = clients.run(job)
        alone += clients.idle(server.url, options.seconds / 2)
        rows.append(busy.row(f"{name}, {way}"))
        p99, p99_alone = percentile(busy.renders, 0.99), percentile(alone, 0.99)
        shares = [percentile(times, share) for share in (0.5, 0.99) for times in (alone, busy.renders)]
        row = [f"{name}, {way}", str(streams), str(len(busy.renders))]
        renders.append([*row, *(f"{share * 1e3:.2f}" for share in shares), f"{p99 / p99_alone:.2f}x"])
        if server is not ours or streams != aims.STREAMS:
            return
        case = f"{streams} streams at {options.pace:g} tokens/s on one core, {way}"
        goals.least(f"tokens/s, {case}", busy.rate, 0.99 * streams * options.pace)
        goals.most(f"p99 ms of a chunk, {case}", percentile(busy.times, 0.99) * 1e3, aims.CHUNK_SECONDS * 1e3)
        if way.startswith("session"):
            goals.most(f"µs a token, {case}", busy.cpu_per_token * 1e6, aims.SESSION_MICROSECONDS, "{:.0f}")
        goals.most(f"p99 of a small render against idle, {case}", p99 / p99_alone, aims.RENDER_MOVED)

    try:
        for streams in options.streams:
            for way in WAYS:
                if way in options.ways.split(",") and (way != "session in steps" or streams > load.STEPS):
                    measured(ours, "ours", way, streams)
        if peer is not None:
            for streams in options.streams[:2]:
                measured(peer, "vLLM", "all in each call", streams)
    finally:
        clients.close()
    print_table(f"Streams at {options.pace:g} tokens/s each for {options.seconds:g} s", load.HEADER, rows)
    header = [
        "server and way",
        "streams",
        "renders",
        "p50 idle ms",
        "p50 ms",
        "p99 idle ms",
        "p99 ms",
        "p99 moved",
    ]
    print_table("Small renders meanwhile", header, renders)


def main() -> None:
    options = parsed()
    goals = aims.Aims()
    print(machine())
    with tempfile.TemporaryDirectory() as directory, ExitStack() as exits:
        logs = Path(directory)
        model = long_model(logs / "long", LONGEST)
        served = ("--served-model-name", "qwen3", *vllm.RENDER_OPTIONS)
        ours = render_tier_server(model, *served, log_dir=logs)
        peer = None if options.no_peer else vllm.render(model, "qwen3", log_dir=logs)
        with on_cores(server_core()):
            for server in (ours, peer):
                if server is not None:
                    exits.enter_context(server)
        settled(ours)
        if options.before_others:
            for pid in (os.getpid(), *(server.pid for server in (ours, peer) if server is not None)):
                before_others(pid, 1)
        if options.only != "loads":
            with on_cores(client_cores()):
                asyncio.run(costs(ours, peer, options, goals))
        if options.only != "costs":
            with on_cores(client_cores()):
                loads(ours, peer, options, goals)
    goals.show()
    print(machine())


if __name__ == "__main__":
    main()
