"""Running the programs in `tests/e2e/programs`, and reading what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent.parent / "e2e" / "programs"


def run(program: str, chat: dict[str, Any], *options: str) -> list[dict[str, Any]]:
    """The JSON objects that a program prints."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / program, *options],
        input=json.dumps(chat),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def answer(completion: dict[str, Any]) -> tuple[str, str]:
    [choice] = completion["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def streamed_answer(chunks: list[dict[str, Any]]) -> tuple[str, str]:
    """Content and finish reason of a stream; checks what every client relies on."""
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(finishes) == 1
    return "".join(choice["delta"].get("content") or "" for choice in choices), finishes[0]
