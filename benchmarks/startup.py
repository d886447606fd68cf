"""From process start to ready, and memory once warm: ours beside `vllm-rs render` and `vllm launch render`.

All serve the Qwen3 tokenizer (151k vocabulary) with the same parsers; each start is a new process. Memory
is read after one chat with tools was rendered and (but for vllm-rs) one answer derendered.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.measure import Memory, cpu_seconds, machine, median, memory, print_table, ratio
from benchmarks.render import fetch_vllm_rs
from tests.support import vllm
from tests.support.processes import ServerProcess, render_tier_server

RUST = "vllm-rs"
ROOT = Path(__file__).resolve().parent.parent
QWEN3 = ROOT / ".cache" / "models" / "qwen3"
CHAT = {
    "model": "qwen3",
    "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}],
}


@dataclass(frozen=True)
class Start:
    seconds: float
    cpu: float
    memory: Memory


def warm(url: str, *, derenders: bool) -> None:
    """Render one chat and derender one answer, so that nothing is loaded lazily afterwards."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        rendered = client.post("/v1/chat/completions/render", json=CHAT).raise_for_status().json()
        if not derenders:
            return
        reply = {
            "request_id": "generate-tokens-chatcmpl-1",
            "choices": [{"index": 0, "token_ids": [9707, 11, 1879], "finish_reason": "length"}],
        }
        body = {"generate_response": reply, "prompt_token_ids": rendered["token_ids"], "chat_request": CHAT}
        client.post("/v1/chat/completions/derender", json=body).raise_for_status()


def measure(server: ServerProcess) -> Start:
    with server:
        cpu = cpu_seconds(server.pid)
        warm(server.url, derenders=server.name != RUST)
        return Start(server.ready_after, cpu, memory(server.pid))


def ours(logs: Path, workers: int) -> ServerProcess:
    options = ["--served-model-name", "qwen3", *vllm.RENDER_OPTIONS]
    if workers > 1:
        options += ["--workers", str(workers)]
    return render_tier_server(QWEN3, *options, log_dir=logs)


def rust(logs: Path) -> ServerProcess:
    flags = ["--served-model-name", "qwen3", "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes"]
    binary = fetch_vllm_rs()
    return ServerProcess(
        RUST,
        lambda port: [binary, "render", QWEN3, *flags, "--port", str(port)],
        log_dir=logs,
        ready_path="/health",
        ready_within=120,
        env={"PATH": os.environ.get("PATH", ""), "HF_HUB_OFFLINE": "1"},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="starts of render-tier")
    parser.add_argument("--peer-runs", type=int, default=2, help="starts of vLLM")
    parser.add_argument("--workers", type=int, default=4, help="processes in the row of several workers")
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        series: list[tuple[str, Callable[[], ServerProcess], int]] = [
            ("render-tier", lambda: ours(logs, 1), arguments.runs),
            (f"render-tier, {arguments.workers} workers", lambda: ours(logs, arguments.workers), 1),
            ("vllm-rs render", lambda: rust(logs), arguments.peer_runs),
            ("vllm launch render", lambda: vllm.render(QWEN3, "qwen3", log_dir=logs), arguments.peer_runs),
        ]
        results = {name: [measure(make()) for _ in range(runs)] for name, make, runs in series if runs}
    base = results["render-tier"]
    base_seconds = median(start.seconds for start in base)
    rows = []
    for name, starts in results.items():
        seconds = median(start.seconds for start in starts)
        last = starts[-1].memory
        rows.append(
            [
                name,
                f"{seconds:.2f}",
                ratio(seconds, base_seconds),
                f"{min(s.seconds for s in starts):.2f} to {max(s.seconds for s in starts):.2f}",
                f"{median(s.cpu for s in starts):.2f}",
                str(last.processes),
                f"{last.resident / last.processes:.0f}",
                f"{last.unique / last.processes:.0f}",
                ratio(last.resident, base[-1].memory.resident),
            ]
        )
    header = ["server", "ready, s (median)", "ratio", "range, s", "CPU, s", "processes"]
    header += ["resident MB a process", "unique MB a process", "resident, ratio"]
    print_table("Start to ready, and memory when warm", header, rows)


if __name__ == "__main__":
    main()
