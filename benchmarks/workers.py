"""What each more worker of a service takes: forked from a process that has loaded everything, they share it.

A row is a start with so many workers. `unique` is what no other process maps; `proportional` shares each page
out among those that map it: over all processes it is what the server takes. Render tier: Qwen3's tokenizer,
after every worker has rendered chats. Orchestrator: idle, its members away.

    python -m benchmarks.workers        # a minute
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks.measure import machine, print_table, tree
from benchmarks.startup import CHAT, QWEN3
from tests.support import vllm
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server

COUNTS = (1, 2, 4)
ROUNDS = 30
"""Chats for each worker; the kernel gives a connection to whichever."""


def warm(url: str, workers: int) -> None:
    path = f"{url}/v1/chat/completions/render"
    for _ in range(ROUNDS * workers):
        httpx.post(path, json=CHAT, timeout=60, trust_env=False).raise_for_status()


def servers(logs: Path, workers: int) -> Iterator[tuple[str, ServerProcess]]:
    count = () if workers == 1 else ("--workers", str(workers))
    options = ("--served-model-name", "qwen3", *vllm.RENDER_OPTIONS, *count)
    yield "render-tier", render_tier_server(QWEN3, *options, log_dir=logs)
    members = [
        flag for role in ("render", "prefill", "decode") for flag in (f"--{role}", "http://127.0.0.1:9")
    ]
    orchestrator = orchestrator_server(*members, *count, log_dir=logs)
    orchestrator.ready_path = "/health"
    yield "pd-orchestrator", orchestrator


def row(name: str, workers: int, server: ServerProcess) -> list[str]:
    with server:
        if name == "render-tier":
            warm(server.url, workers)
        parent, *forked = [process.memory_full_info() for process in tree(server.pid)]
    each = forked or [parent]
    return [
        name,
        str(workers),
        f"{sum(info.rss for info in each) / len(each) / 1e6:.0f}",
        f"{sum(info.uss for info in each) / len(each) / 1e6:.0f}",
        f"{parent.uss / 1e6:.0f}" if forked else "-",
        f"{sum(info.pss for info in (parent, *forked)) / 1e6:.0f}",
    ]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="workers-") as logs:
        rows = [row(name, count, server) for count in COUNTS for name, server in servers(Path(logs), count)]
    each = ("resident each", "unique each", "unique of the parent", "proportional of all")
    header = ["service", "workers", *each]
    print_table("Memory in MB", header, sorted(rows, reverse=True))


if __name__ == "__main__":
    main()
