"""Goodput: the request rate at which 99% of requests meet both targets, prefill and decode apart against both
on each engine.

*In simulated time* (benchmarks/fleet.py): four engines, split 1:3, 2:2 or 3:1, or all four doing both with
chunked prefill (in chunks of 512 and of 2,048 tokens). Service times are of the size that an 8B model has on
one data-centre GPU; they are assumed, not measured, and can be changed in ``RATES``. The same requests come
in the same order at every rate. A request meets its targets when its first token is in time and its mean time
between tokens is. The rate is found by halving, to 4%.

*For real* (unless ``--simulated``): two embedded engines with SmolLM2 on this machine's CPU, apart against
both on each, at rising rates; targets are multiples of what one request alone takes here, in the same run.
All processes share the cores, so engines apart do not have cores of their own, as they would on GPUs.

    python -m benchmarks.goodput                 # about 10 minutes
    python -m benchmarks.goodput --quick         # about 2
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.fleet import Run, apart, arrivals, together
from benchmarks.measure import machine, median, print_table
from benchmarks.pd_real import CHAT, Prompts, Sample, stream
from orchestrator.core.capacity import Rates
from orchestrator.core.kv_size import KvSize
from orchestrator.core.workload import Lengths, Workload, drawn
from tests.support.processes import engine_server, orchestrator_server, render_tier_server

SHARE = 0.99
FEWEST = 200
"""Requests, of which one in a hundred may miss."""
ENGINES = 4
SEQUENCES = 256
CHUNKS = (512, 2048)
RATES = Rates(
    prefill_tokens=25_000,
    step=0.007,
    step_per_sequence=0.00005,
    step_per_context_token=4e-8,
    prefill_overhead=0.003,
)
KV = KvSize(full_layers=32, windowed_layers=0, window=0, layer_bytes=4096)
LINKS = {"200 Gbit/s": 25e9, "10 Gbit/s": 1.25e9}
WORKLOADS = {
    "chat: 1,500 in, 250 out": drawn(Lengths(1500, 0.8), Lengths(250, 0.6), 1.0),
    "long prompts: 8,000 in, 150 out": drawn(Lengths(8000, 0.5), Lengths(150, 0.6), 1.0),
    "agents: 8,000 in, 80% cached, 150 out": drawn(
        Lengths(8000, 0.5), Lengths(150, 0.6), 1.0, cached_share=0.8
    ),
    "long answers: 300 in, 800 out": drawn(Lengths(300, 0.5), Lengths(800, 0.5), 1.0),
}
TARGETS = {"strict": (2.0, 0.015), "relaxed": (5.0, 0.060)}
"""Seconds: first token, and between tokens."""
REAL_DIRECTORY = Path(__file__).resolve().parent.parent / ".cache" / "models" / "smollm2"
REAL_NAME = "smollm2"


# --- in simulated time


@dataclass(frozen=True)
class Fleet:
    name: str
    play: Callable[[Workload, float, int], Run]
    """Of a workload at a rate, with so many requests."""

    def goodput(self, workload: Workload, target: tuple[float, float], seconds: float) -> float:
        """Requests a second; 0 when not even an idle fleet meets the target. ``seconds``: how long a rate is
        played; a short burst would be worked off within the targets at any rate."""

        def meets(rate: float) -> bool:
            count = max(FEWEST, round(rate * seconds))
            return self.play(workload, rate, count).within(*target) >= SHARE

        low, high = 0.0, 4.0
        while meets(high):
            low, high = high, high * 2
        while high - low > 0.04 * high and high > 0.1:
            middle = (low + high) / 2
            low, high = (middle, high) if meets(middle) else (low, middle)
        return low


def split(prefills: int, link: float, name: str) -> Fleet:
    def play(workload: Workload, rate: float, count: int) -> Run:
        return apart(
            arrivals(workload.asked, rate, count, seed=1), RATES,
            prefills=prefills, decodes=ENGINES - prefills, sequences=SEQUENCES, kv=KV, link=link,
        )  # fmt: skip

    return Fleet(name, play)


def both(chunk: int) -> Fleet:
    def play(workload: Workload, rate: float, count: int) -> Run:
        asked = arrivals(workload.asked, rate, count, seed=1)
        return together(asked, RATES, engines=ENGINES, sequences=SEQUENCES, chunk=chunk)

    return Fleet(f"both, chunks of {chunk}", play)


def simulated(seconds: float) -> None:
    splits = range(1, ENGINES)
    fast, slow = LINKS
    fleets = [split(number, LINKS[fast], f"{number}P:{ENGINES - number}D") for number in splits]
    narrow = [split(number, LINKS[slow], f"{number}P:{ENGINES - number}D") for number in splits]
    colocated = [both(chunk) for chunk in CHUNKS]
    rows, verdicts = [], []
    for title, workload in WORKLOADS.items():
        for strictness, target in TARGETS.items():
            found = {fleet.name: fleet.goodput(workload, target, seconds) for fleet in (*fleets, *colocated)}
            best = max(fleets, key=lambda fleet: found[fleet.name])
            over = narrow[fleets.index(best)].goodput(workload, target, seconds)
            peer = max(found[fleet.name] for fleet in colocated)
            first, between = target
            cells = [title, f"{strictness}: {first:g} s, {between * 1000:g} ms"]
            rows.append([*cells, *(f"{rate:.1f}" for rate in found.values()), f"{over:.1f}"])
            verdicts.append(verdict(f"{title}, {strictness}", best.name, found[best.name], peer, slow, over))
            print(".", end="", flush=True)
    names = [fleet.name for fleet in (*fleets, *colocated)]
    header = ["workload", "first token, between tokens", *names, f"best split, {slow}"]
    print_table(f"Requests a second of {ENGINES} engines, {SHARE:.0%} within the targets", header, rows)
    print()
    print("\n".join(verdicts))


def verdict(title: str, name: str, rate: float, peer: float, slow: str, over: float) -> str:
    """Also where apart loses."""
    if not peer:
        return f"{title}: {'apart alone meets it, ' + name if rate else 'neither meets it'}"
    word = "wins" if rate > 1.03 * peer else "LOSES" if rate < 0.97 * peer else "draws"
    link = "" if over > 0.97 * rate else f"; over {slow} {over / peer:.2f}x"
    return f"{title}: apart {word}, {rate / peer:.2f}x ({name}){link}"


# --- for real


async def at_rate(url: str, prompts: Prompts, rate: float, count: int, output: int) -> list[Sample]:
    """Poisson arrivals, the same at each call."""
    dice, asked = random.Random(5), []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        for _ in range(count):
            body = prompts.chat(output)
            asked.append(asyncio.create_task(stream(session, url + CHAT, body, time.perf_counter())))
            await asyncio.sleep(dice.expovariate(rate))
        return await asyncio.gather(*asked)


def between(sample: Sample) -> float:
    return sum(sample.gaps) / max(1, len(sample.gaps))


def real(count: int, output: int, prompt: int) -> None:
    prompts = Prompts(prompt)
    with tempfile.TemporaryDirectory(prefix="goodput-") as scratch, ExitStack() as exits:
        logs = Path(scratch)
        named = ("--served-model-name", REAL_NAME)
        render = exits.enter_context(render_tier_server(REAL_DIRECTORY, *named, log_dir=logs))
        engines = {
            name: exits.enter_context(
                engine_server(
                    "--model", REAL_DIRECTORY, *named, "--threads", "1", role=role, log_dir=logs, name=name
                )
            )
            for name, role in (("p", "prefill"), ("d", "decode"), ("one", "both"), ("other", "both"))
        }
        members = {
            "apart": ("--prefill", engines["p"].url, "--decode", engines["d"].url),
            "both": ("--decode", engines["one"].url, "--decode", engines["other"].url),
        }
        fronts = {
            way: exits.enter_context(
                orchestrator_server("--render", render.url, *options, log_dir=logs, name=f"front-{way}")
            )
            for way, options in members.items()
        }
        alone = asyncio.run(at_rate(fronts["both"].url, prompts, 50, 2, output))  # connections
        alone = [
            sample
            for _ in range(3)
            for sample in asyncio.run(at_rate(fronts["both"].url, prompts, 50, 1, output))
        ]
        first, gap = median(one.first for one in alone), median(between(one) for one in alone)
        busy = first + gap * output
        target = (4 * first, 2.5 * gap)
        rows = []
        for load in (0.4, 0.8, 1.6):
            rate = 2 * load / busy
            for way, front in fronts.items():
                samples = asyncio.run(at_rate(front.url, prompts, rate, count, output))
                good = sum(one.first <= target[0] and between(one) <= target[1] for one in samples)
                firsts, gaps = [one.first for one in samples], [between(one) for one in samples]
                rows.append(
                    [
                        *(f"{rate:.2f}", way, f"{good} of {count}", f"{median(firsts) * 1000:.0f}"),
                        f"{median(gaps) * 1000:.0f}",
                    ]
                )
                print(".", end="", flush=True)
    print_table(
        f"Embedded engines, prompts of about {prompt} tokens, {output} of output; targets: first token"
        f" {target[0] * 1000:.0f} ms, between tokens {target[1] * 1000:.0f} ms",
        ["requests/s", "way", "within both", "first token, median ms", "between tokens, median ms"],
        rows,
    )
    print(judged(rows))


def judged(rows: Sequence[Sequence[str]]) -> str:
    """By rate, who kept more of its targets."""
    kept = {(row[0], row[1]): int(row[2].split()[0]) for row in rows}
    words = []
    for rate in dict.fromkeys(row[0] for row in rows):
        ours, theirs = kept[rate, "apart"], kept[rate, "both"]
        words.append(f"{rate}/s apart {'wins' if ours > theirs else 'LOSES' if ours < theirs else 'draws'}")
    return "\n" + "; ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--simulated", action="store_true", help="no real engines")
    parser.add_argument("--real", action="store_true", help="real engines alone")
    options = parser.parse_args()
    print(machine())
    if not options.real:
        simulated(12 if options.quick else 60)
    if not options.simulated:
        real(*((8, 8, 96) if options.quick else (24, 24, 256)))
        print(f"\nload at the end: {machine().rpartition('load ')[2]}")


if __name__ == "__main__":
    main()
