"""What a chat with an image costs the orchestrator and the render tier in CPU: new images, and one again.

    python -m benchmarks.orchestrator_images [--images N]

Qwen2.5-VL's render tier, and engines that cost nothing (`benchmarks.simulated`), which are sent whole images
or, with `policy.known_images = "named"`, the names of those that they have had. CPU time is each process'.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.images import SIZES, body, ours
from benchmarks.measure import cpu_seconds, machine, peak_resident, print_table
from tests.support.processes import ServerProcess, orchestrator_server

MODES = ("whole", "named")


def engine(role: str, scratch: Path) -> ServerProcess:
    return ServerProcess(
        role,
        lambda port: [sys.executable, "-m", "benchmarks.simulated", "engine", str(port), "1"],
        log_dir=scratch,
        ready_path="/health",
    )


def chats(width: int, height: int, seeds: range) -> list[bytes]:
    return [json.dumps(json.loads(body(width, height, seed)) | {"max_tokens": 4}).encode() for seed in seeds]


def costs(client: httpx.Client, url: str, servers: list[ServerProcess], bodies: list[bytes]) -> list[str]:
    """Milliseconds a chat, of each of the servers."""
    before = [cpu_seconds(server.pid) for server in servers]
    for one in bodies:
        client.post(url, content=one, headers={"content-type": "application/json"}).raise_for_status()
    spent = zip(servers, before, strict=True)
    return [f"{(cpu_seconds(server.pid) - start) / len(bodies) * 1000:.1f}" for server, start in spent]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--images", type=int, default=10)
    count = options.parse_args().images
    print(machine())
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        render = stack.enter_context(ours(scratch / "render"))
        prefill, decode = (stack.enter_context(engine(role, scratch)) for role in ("prefill", "decode"))
        members = ("--render", render.url, "--prefill", prefill.url, "--decode", decode.url)
        orchestrators = []
        for mode in MODES:
            config = scratch / f"{mode}.toml"
            config.write_text(f'[policy]\nknown_images = "{mode}"\n')
            words = (*members, "--config", config, "--log-level", "warning")
            orchestrators.append(
                stack.enter_context(orchestrator_server(*words, log_dir=scratch, name=f"orchestrator_{mode}"))
            )
        client = stack.enter_context(httpx.Client(timeout=120, trust_env=False))
        rows = []
        for width, height in SIZES:
            for number, (mode, orchestrator) in enumerate(zip(MODES, orchestrators, strict=True)):
                # Images that are new to render too.
                *new, first = chats(width, height, range(number * (count + 1), (number + 1) * (count + 1)))
                costs(client, f"{orchestrator.url}/v1/chat/completions", [], [first])  # what is made once
                for kind, bodies in (("new", new), ("again", new[-1:] * 4 * count)):
                    url = f"{orchestrator.url}/v1/chat/completions"
                    spent = costs(client, url, [orchestrator, render], bodies)
                    rows.append([f"{width}x{height}", kind, mode, *spent])
        print_table(
            "Chat with one image, CPU ms", ["image", "", "engines get", "orchestrator", "render"], rows
        )
        for orchestrator in orchestrators:
            print(f"{orchestrator.name}: at most {peak_resident(orchestrator.pid):.0f} MB")


if __name__ == "__main__":
    main()
