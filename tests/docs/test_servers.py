"""The README's servers, started by its own commands, and what the docs say to ask them.

In the place of vLLM, which needs GPUs, engines of ours play a script. Names of the hub stand for a directory.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from orchestrator.demo.script import QUESTION, WEATHER_TOOL, write_script
from tests.support.documented import PAGES, Command, commands
from tests.support.processes import BIN, ServerProcess, engine_server
from tests.support.stacks import becomes_idle, parts_of_the_script

README, *DOCS = PAGES
MODEL = "Qwen/Qwen3-8B"


def servers(page: Path) -> list[Command]:
    """Of the page's first system: up to its orchestrator."""
    found = [command for command in commands(page) if "--port" in command.words]
    last = next(n for n, command in enumerate(found) if command.words[0] == "pd-orchestrator")
    return found[: last + 1]


@pytest.fixture(scope="module")
def system(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """The servers by the URLs that the README gives them."""
    logs = tmp_path_factory.mktemp("servers")
    script = logs / "script.json"
    write_script(qwen3_dir, script, interval_ms=1)
    running: dict[str, ServerProcess] = {}
    with ExitStack() as exits:
        for command in servers(README):
            words = list(command.words)
            at = words.index("--port") + 1
            documented = f"http://127.0.0.1:{words[at]}"

            def argv(port: int, words: Sequence[str] = words, at: int = at) -> list[str | Path]:
                there = {url: process.url for url, process in running.items()} | {MODEL: str(qwen3_dir)}
                mapped = [there.get(word, word) for word in words]
                return [BIN / mapped[0], *mapped[1:at], str(port), *mapped[at + 1 :]]

            if words[0] == "vllm":
                role = "prefill" if "kv_producer" in words[-1] else "decode"
                process = engine_server("--model", qwen3_dir, "--script", script, role=role, log_dir=logs)
            else:
                process = ServerProcess(words[0], argv, log_dir=logs)
            running[documented] = exits.enter_context(process)
        yield running


@pytest.fixture(scope="module")
def orchestrator(system: dict[str, ServerProcess]) -> ServerProcess:
    return system["http://127.0.0.1:8000"]


def test_other_pages_start_the_same() -> None:
    [page] = [page for page in DOCS if page.name == "engines.md"]
    assert [command.words for command in servers(page)] == [
        command.words for command in sorted(servers(README), key=lambda one: one.words[0] != "vllm")
    ]


def ask(orchestrator: ServerProcess, *words: str) -> str:
    command = [BIN / "pd-orchestrator", *words, "--url", orchestrator.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_answer_with_reasoning_and_calls_and_explain_it(
    system: dict[str, ServerProcess], orchestrator: ServerProcess
) -> None:
    reasoning, content, call = parts_of_the_script()
    with openai.OpenAI(base_url=f"{orchestrator.url}/v1", api_key="unused", max_retries=0) as client:
        [model] = client.models.list().data
        answer = client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": QUESTION}], tools=[WEATHER_TOOL]
        )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content.strip() == content.strip()
    assert choice.message.reasoning.strip() == reasoning.strip()
    assert choice.message.tool_calls[0].function.name == call["name"]
    explained = ask(orchestrator, "explain", answer.id)
    for role in ("render", "prefill", "decode"):
        assert role in explained
    for port in (8110, 8120):
        assert system[f"http://127.0.0.1:{port}"].url in explained
    becomes_idle(orchestrator)


def test_status_shows_every_member(system: dict[str, ServerProcess], orchestrator: ServerProcess) -> None:
    shown = ask(orchestrator, "status")
    members = [process.url for process in system.values() if process is not orchestrator]
    assert len(members) == 3
    assert all(url in shown for url in members)
    assert json.loads(ask(orchestrator, "status", "--json"))["missing_roles"] == []
