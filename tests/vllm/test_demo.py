"""`make demo ENGINE=vllm`: the demo on a real vLLM pair; what it shows, and that Ctrl-C ends all of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support import vllm
from tests.support.processes import BIN, free_port

SHOWN_WITHIN = 600.0
"""Seconds for the start of eight processes, two of them vLLM's, and both chats."""
LAYERS, KV_HEADS, HEAD_SIZE = 30, 3, 64
"""Of SmolLM2-135M."""


@dataclass
class Demo:
    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")


@pytest.fixture(scope="module")
def demo(smollm2_dir: Path, qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """As `make demo ENGINE=vllm ARGS=--keep` calls it, until it says that it waits for Ctrl-C."""
    models = ("--model", smollm2_dir, "--scripted-model", qwen3_dir)
    options = ("--engine", "vllm", "--max-tokens", "12", "--keep", "--port", str(free_port()))
    output = tmp_path_factory.mktemp("demo") / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [str(BIN / "pd-orchestrator"), "demo", *map(str, models), *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"COLUMNS": "200", "VLLM_ENV": str(vllm.environment())},
        )
    shown = Demo(process, output)
    try:
        end = time.monotonic() + SHOWN_WITHIN
        while "running until" not in shown.text():
            assert shown.process.poll() is None, shown.text()
            assert time.monotonic() < end, shown.text()
            time.sleep(0.2)
        yield shown
    finally:
        if shown.process.poll() is None:
            shown.process.send_signal(signal.SIGINT)
            shown.process.wait(60)


def test_shows_the_same_table_with_kv_that_vllm_moved(demo: Demo) -> None:
    real, scripted = demo.text().split("2. Reasoning and a tool call")
    assert "real vLLM engines over NIXL" in real
    for hop in ("render", "prefill", "KV transfer", "first decode step", "first derender", "TTFT"):
        assert re.search(rf"{hop} +│ [0-9.]+ ms", real), hop
    assert "completion 12 tokens, finish_reason length" in real
    tokens = re.search(r"prompt (\d+) tokens", real)
    moved = re.search(r"KV moved +│ ([0-9.]+) MiB", real)
    assert tokens is not None
    assert moved is not None
    # Keys and values in float32 of all but the last token at least; whole blocks travel.
    least = (int(tokens[1]) - 1) * LAYERS * 2 * KV_HEADS * HEAD_SIZE * 4 / 2**20
    assert float(moved[1]) >= round(least, 2)
    assert 'get_weather({"city": "Oslo", "hours": 4, "units": "metric"})' in scripted


def test_ctrl_c_ends_every_process(demo: Demo) -> None:
    children = psutil.Process(demo.process.pid).children(recursive=True)
    assert sum("vllm" in " ".join(child.cmdline()) for child in children) >= 2
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    demo.process.wait(60)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert "all processes ended" in demo.text()


def test_make_sets_the_environment_up_and_calls_the_demo() -> None:
    done = subprocess.run(
        ["make", "-n", "demo", "ENGINE=vllm", "ARGS=--keep"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'VLLM_ENV="$(scripts/vllm_env.sh)"' in done.stdout
    assert "pd-orchestrator demo --engine vllm --keep" in done.stdout


def test_says_what_to_do_without_an_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BIN / "pd-orchestrator"), "demo", "--engine", "vllm"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"VLLM_ENV": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "make demo ENGINE=vllm" in done.stderr
