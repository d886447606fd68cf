"""A user's own drivers work against the parts: httpx programs over three and four hops, and `curl`.

All of them, whole and streaming, give the same greedy answer for the same chat.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hop_programs import answer, run, streamed_answer
from tests.support.processes import ServerProcess, render_tier_server

CHATS: dict[str, dict[str, Any]] = {
    "short": {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_completion_tokens": 24,
    },
    "turns, several blocks": {
        "model": "smollm2",
        "messages": [
            {"role": "system", "content": "You are a careful assistant who answers in one sentence. " * 6},
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "Green, like the leaves in May."},
            {"role": "user", "content": "Why that one?"},
        ],
        "temperature": 0,
        "max_completion_tokens": 24,
    },
}


@pytest.fixture(params=CHATS)
def chat(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CHATS[request.param]


def test_three_hops_whole_and_streaming_agree(
    chat: dict[str, Any], render_tier: ServerProcess, colocated_engine: ServerProcess
) -> None:
    urls = ("--render", render_tier.url, "--engine", colocated_engine.url)
    [completion] = run("three_hop.py", chat, *urls)
    assert completion["object"] == "chat.completion"
    assert completion["usage"]["completion_tokens"] > 0
    assert answer(completion)[0].strip()
    assert streamed_answer(run("three_hop.py", chat, *urls, "--stream")) == answer(completion)


def test_four_hops_give_the_answer_of_three(
    chat: dict[str, Any],
    render_tier: ServerProcess,
    colocated_engine: ServerProcess,
    prefill_engine: ServerProcess,
    decode_engine: ServerProcess,
) -> None:
    [colocated] = run("three_hop.py", chat, "--render", render_tier.url, "--engine", colocated_engine.url)
    urls = ("--render", render_tier.url, "--prefill", prefill_engine.url, "--decode", decode_engine.url)
    [completion] = run("four_hop.py", chat, *urls)
    assert answer(completion) == answer(colocated)
    assert completion["usage"] == colocated["usage"]
    assert streamed_answer(run("four_hop.py", chat, *urls, "--stream")) == answer(colocated)


@pytest.fixture(scope="module")
def second_render(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    options = ("--served-model-name", "smollm2")
    with render_tier_server(smollm2_dir, *options, log_dir=server_logs, name="render-second") as process:
        yield process


@pytest.mark.parametrize(
    "program",
    [("three_hop_digest.py",), ("three_hop_session.py",), ("three_hop_session.py", "--break-after", "5")],
    ids=["digest", "session", "session lost"],
)
def test_programs_that_send_the_context_once_give_the_same_answer(
    program: tuple[str, ...],
    render_tier: ServerProcess,
    second_render: ServerProcess,
    colocated_engine: ServerProcess,
) -> None:
    chat = CHATS["short"]
    [whole] = run("three_hop.py", chat, "--render", render_tier.url, "--engine", colocated_engine.url)
    renders = ("--render", render_tier.url, "--render", second_render.url)
    chunks = run(program[0], chat, *renders, "--engine", colocated_engine.url, *program[1:])
    assert streamed_answer(chunks) == answer(whole)


def curl(url: str, body: dict[str, Any], *options: str) -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(
        [program, "-sS", "--fail-with-body", "--max-time", "60", *options, url,
         "-H", "Content-Type: application/json", "-d", json.dumps(body)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_curl_gets_the_answer_of_the_hop_programs(
    chat: dict[str, Any],
    orchestrator: ServerProcess,
    render_tier: ServerProcess,
    colocated_engine: ServerProcess,
) -> None:
    [colocated] = run("three_hop.py", chat, "--render", render_tier.url, "--engine", colocated_engine.url)
    whole = json.loads(curl(f"{orchestrator.url}/v1/chat/completions", chat))
    assert answer(whole) == answer(colocated)


def test_curl_streams_events_that_end_with_done(chat: dict[str, Any], orchestrator: ServerProcess) -> None:
    url = f"{orchestrator.url}/v1/chat/completions"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = [line for line in curl(url, chat | options, "-N").splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    usage = chunks.pop()
    assert usage["choices"] == []
    whole = json.loads(curl(url, chat))
    assert streamed_answer(chunks) == answer(whole)
    fields = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage["usage"][field] for field in fields] == [whole["usage"][field] for field in fields]
