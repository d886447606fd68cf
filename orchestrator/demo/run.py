"""The demo: start two stacks, run one chat through each, say what happened, end everything."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import APIError
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from orchestrator.demo import engines
from orchestrator.demo.chat import ChatRecord, stream_chat
from orchestrator.demo.metrics import read_totals
from orchestrator.demo.processes import Child, ProcessFailed, port_is_free, stop_all
from orchestrator.demo.report import Transfer, print_message, print_report, print_title
from orchestrator.demo.script import QUESTION, WEATHER_TOOL, write_script
from orchestrator.demo.stack import Stack, build_stack

QWEN3_FLAGS = (
    *("--reasoning-parser", "qwen3"),
    *("--tool-call-parser", "hermes"),
    "--enable-auto-tool-choice",
)
EXAMPLE_PORT = 8000
EXAMPLE_URL = f"http://127.0.0.1:{EXAMPLE_PORT}"
ENGINE_WORDS = {"embedded": "the embedded engine", "vllm": "real vLLM engines over NIXL"}
STYLES = {"reasoning": "dim italic", "content": "", "call": "cyan"}


@dataclass(frozen=True)
class Options:
    """What the user chose; see the command's help. ``vllm_env``: the first chat runs on vLLM from there."""

    model: Path
    scripted_model: Path
    prompt: str
    max_tokens: int
    port: int
    ready_timeout: float
    keep: bool
    vllm_env: Path | None = None

    @property
    def engine(self) -> str:
        return "embedded" if self.vllm_env is None else "vllm"


def run(options: Options) -> int:
    """The whole demo; returns the exit code. Every process it started has ended when it returns."""
    console = Console(highlight=False)
    for directory in (options.model, options.scripted_model):
        if not (directory / "tokenizer.json").is_file():
            console.print(f"{directory} is not a model directory: run `make models` first", style="red")
            return 2
    if options.port and not port_is_free(options.port):
        console.print(f"port {options.port} is in use: choose another with --port", style="red")
        return 2
    try:
        with ExitStack() as cleanup:
            _run(console, cleanup, options)
    except (ProcessFailed, httpx.HTTPError, APIError) as failure:
        console.print(f"\n{failure}", style="red", markup=False)
        return 1
    return 0


def _run(console: Console, cleanup: ExitStack, options: Options) -> None:
    scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="pd-demo-")))
    script = scratch / "script.json"
    write_script(options.scripted_model, script, interval_ms=25)
    if options.vllm_env is None:
        pair = engines.embedded(options.model, "smollm2")
    else:
        pair = engines.vllm(options.vllm_env, options.model, "smollm2", scratch)
    real = build_stack("smollm2", options.model, pair, scratch, port=options.port)
    player = engines.embedded(options.scripted_model, "qwen3", "--script", str(script))
    scripted = build_stack("qwen3", options.scripted_model, player, scratch, render_flags=QWEN3_FLAGS)
    children = [*real.children, *scripted.children]
    cleanup.callback(stop_all, children)
    _start(console, children, options.ready_timeout)

    words = ENGINE_WORDS[options.engine]
    print_title(console, f"1. A chat: render → prefill → decode → derender, real weights on {words}")
    chat = {"model": real.served, "messages": [{"role": "user", "content": options.prompt}]}
    greedy = {"temperature": 0, "max_tokens": options.max_tokens}
    record, transfer = _chat(console, real, options.prompt, chat | greedy)
    print_report(console, record, transfer)

    print_title(
        console, "2. Reasoning and a tool call: same four hops, a Qwen3 answer played by the embedded engine"
    )
    request = {
        "model": scripted.served,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [WEATHER_TOOL],
        "max_tokens": 512,
    }
    record, transfer = _chat(console, scripted, QUESTION, request)
    print_message(console, record)
    print_report(console, record, transfer)

    _print_curl(console, real, options)
    if options.keep:
        for child in children:
            console.print(f"  {child.name:24} {child.url}  pid {child.pid}")
        console.print("running until Ctrl-C")
        _watch(console, children)


def _watch(console: Console, children: Sequence[Child]) -> None:
    """Wait for the interrupt, and say so when a process ends by itself."""
    alive = list(children)
    while True:
        for child in [child for child in alive if child.ended]:
            alive.remove(child)
            console.print(f"{child.name} has ended; the end of its log:\n{child.log_tail(8)}", markup=False)
        time.sleep(0.5)


def _start(console: Console, children: Sequence[Child], timeout: float) -> None:
    """Start all at once and show each until it is ready. Raises ProcessFailed."""
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, httpx.Client() as client:
        tasks = {child.name: progress.add_task(f"{child.name} on {child.url}", total=1) for child in children}
        for child in children:
            child.start()
        deadline = time.monotonic() + timeout
        while waiting := [child for child in children if not child.poll_ready(client)]:
            for child in children:
                if child not in waiting:
                    progress.update(tasks[child.name], completed=1)
            if time.monotonic() > deadline:
                names = ", ".join(child.name for child in waiting)
                raise ProcessFailed(f"not ready after {timeout:g} s: {names}\n{waiting[0].log_tail()}")
            time.sleep(0.05)
        for child in children:
            progress.update(tasks[child.name], completed=1)


def _chat(
    console: Console, stack: Stack, question: str, request: dict[str, Any]
) -> tuple[ChatRecord, Transfer]:
    console.print(f"[bold]user:[/bold] {question}")
    shown = ""

    def show(kind: str, text: str) -> None:
        nonlocal shown
        if kind != shown:
            console.print(f"\n[bold]{'tool call' if kind == 'call' else kind}:[/bold] ", end="")
            shown = kind
        console.print(text, end="", style=STYLES[kind], markup=False, soft_wrap=True)

    before = read_totals(stack.decode.url)
    record = stream_chat(stack.orchestrator.url, request, show)
    after = read_totals(stack.decode.url)
    console.print("\n")

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    return record, Transfer(grown(stack.engines.kv_bytes), grown(stack.engines.kv_seconds))


def _print_curl(console: Console, stack: Stack, options: Options) -> None:
    body = {"model": stack.served, "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    if options.keep:
        url, when = stack.orchestrator.url, "Try it yourself"
    else:
        engine = "" if options.engine == "embedded" else f" ENGINE={options.engine}"
        again = f"make demo{engine} ARGS='--keep --port {EXAMPLE_PORT}'"
        url, when = EXAMPLE_URL, f"Run `{again}`, then try it yourself"
    print_title(console, when)
    line = f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' "
    console.print(line + f"-d {shlex.quote(json.dumps(body))}", soft_wrap=True, markup=False)
