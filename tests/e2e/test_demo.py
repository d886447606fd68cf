"""`pd-orchestrator demo` as a user runs it: what it shows, and that nothing of it outlives it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.documented import PAGES, blocks, prints, transcript
from tests.support.processes import BIN, free_port

DOCUMENTED = "http://127.0.0.1:8000"


def demo(smollm2_dir: Path, qwen3_dir: Path, *options: str) -> list[str]:
    models = ["--model", str(smollm2_dir), "--scripted-model", str(qwen3_dir)]
    return [str(BIN / "pd-orchestrator"), "demo", *models, *options]


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_shows_both_chats_where_the_time_went_and_the_tokens(smollm2_dir: Path, qwen3_dir: Path) -> None:
    command = demo(smollm2_dir, qwen3_dir, "--max-tokens", "12")
    # Wide, so that no table cell is wrapped.
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    real, scripted = done.stdout.split("2. Reasoning and a tool call")
    for report in (real, scripted):
        for hop in ("render", "prefill", "KV transfer", "first decode step", "first derender", "TTFT"):
            assert re.search(rf"{hop} +│ [0-9.]+ ms", report), hop
        assert re.search(r"KV moved +│ [0-9.]+ MiB", report)
        assert re.search(r"prompt token IDs: +[0-9]+ ", report)
        assert re.search(r"output token IDs: +[0-9]+ ", report)
    moved = re.search(r"KV moved +│ ([0-9.]+) MiB", real)
    assert moved is not None
    assert float(moved[1]) > 1
    assert "completion 12 tokens, finish_reason length" in real
    assert re.search(r"reasoning +│ The user asks about a walk tonight", scripted)
    assert re.search(r"content +│ Let me look at the forecast first\.", scripted)
    assert 'get_weather({"city": "Oslo", "hours": 4, "units": "metric"})' in scripted
    assert "finish_reason tool_calls" in scripted
    assert re.search(r"curl -N http://127\.0\.0\.1:\d+/v1/chat/completions", scripted)


@pytest.mark.timeout(300)
def test_one_that_is_kept_answers_the_docs_clients_and_an_interrupt_ends_every_process_it_started(
    smollm2_dir: Path, qwen3_dir: Path, tmp_path: Path
) -> None:
    port = free_port()
    command = demo(smollm2_dir, qwen3_dir, "--max-tokens", "2", "--keep", "--port", str(port))
    output = tmp_path / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_for(lambda: process.poll() is not None or "running until" in output.read_text(), 200)
        assert process.poll() is None, output.read_text()
        for words, printed in documented_clients(port):
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            assert printed is None or prints(printed, done.stdout), f"{words}: {done.stdout}"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 8
        process.send_signal(signal.SIGINT)
        process.wait(30)
        wait_for(lambda: not any(alive(child) for child in children), 10)
    finally:
        process.kill()
        process.wait()
    assert "all processes ended" in output.read_text()


def documented_clients(port: int) -> list[tuple[list[str], str | None]]:
    """For a demo at ``port``: the tour, the README's curl, and the README's and the client library's Python;
    with what they print, where that is told."""
    readme, *docs = PAGES
    [tour] = [page for page in docs if page.name == "index.md"]
    asked = []
    for command, printed in [*transcript(tour), *transcript(readme)]:
        program, *words = command.words
        if program == "curl":
            asked.append(([program, *words], printed))
        elif program == "pd-orchestrator" and command.page == tour:
            asked.append(([str(BIN / program), *words, "--url", DOCUMENTED], printed))
    programs = [
        block.code
        for page in PAGES
        for block in blocks(page)
        if block.language == "python" and DOCUMENTED in block.code
    ]
    assert len(asked) > 9
    assert len(programs) == 2
    asked += [([sys.executable, "-c", program], None) for program in programs]
    return [
        ([word.replace(DOCUMENTED, f"http://127.0.0.1:{port}") for word in words], printed)
        for words, printed in asked
    ]


@pytest.mark.timeout(300)
def test_a_killed_demo_takes_its_processes_along(smollm2_dir: Path, qwen3_dir: Path) -> None:
    process = subprocess.Popen(
        demo(smollm2_dir, qwen3_dir), stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        parent = psutil.Process(process.pid)
        wait_for(lambda: len(parent.children()) == 8, 60)
        children = parent.children()
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(alive(child) for child in children), 60)


def alive(process: psutil.Process) -> bool:
    """A zombie that nobody has waited for yet has ended."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_refuses_a_port_that_is_in_use(smollm2_dir: Path, qwen3_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = demo(smollm2_dir, qwen3_dir, "--port", str(taken.getsockname()[1]))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "is in use" in done.stdout


def test_says_what_to_do_when_the_models_are_missing(tmp_path: Path) -> None:
    done = subprocess.run(demo(tmp_path, tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "make models" in done.stdout
