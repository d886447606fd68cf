"""Whole stacks of real processes: one around a played script, and what is under way in any."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.demo.script import ANSWER, write_script
from tests.support.processes import ServerProcess, engine_server, orchestrator_server, render_tier_server

COUNTERS = ("pd_in_flight", "pd_runs", "pd_leases", "pd_exchanges", "pd_tasks")
RUNNING = "vllm:num_requests_running"
LEASES = "embedded:leases_held"


def metric(url: str, name: str) -> float:
    """The sum of a metric's samples."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def becomes_idle(orchestrator: ServerProcess, within: float = 20.0) -> None:
    """Every counter of the idle integrity check reads zero."""
    end = time.monotonic() + within
    while True:
        busy = {name: value for name in COUNTERS if (value := metric(orchestrator.url, name))}
        if not busy:
            return
        assert time.monotonic() < end, busy
        time.sleep(0.05)


class Scripted:
    """A stack of its own around a played script, whose engines a test may kill."""

    def __init__(
        self, exits: ExitStack, model: Path, directory: Path, *, interval_ms: float, first_token_ms: float = 0
    ) -> None:
        script = directory / "script.json"
        write_script(model, script, interval_ms)
        slow = directory / "slow.json"
        entries = json.loads(script.read_text())
        slow.write_text(json.dumps([entry | {"first_token_ms": first_token_ms} for entry in entries]))
        served = ("--served-model-name", "qwen3")
        parsers = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice")
        self.render = exits.enter_context(render_tier_server(model, *served, *parsers, log_dir=directory))
        self.prefill, self.decode = (
            exits.enter_context(
                engine_server("--model", model, *served, "--script", file, role=role, log_dir=directory)
            )
            for role, file in (("prefill", slow), ("decode", script))
        )
        self.orchestrator = exits.enter_context(
            orchestrator_server(
                "--render", self.render.url, "--prefill", self.prefill.url, "--decode", self.decode.url,
                log_dir=directory,
            )
        )  # fmt: skip
        self.client = exits.enter_context(
            openai.OpenAI(base_url=f"{self.orchestrator.url}/v1", api_key="none", max_retries=0, timeout=60)
        )


def parts_of_the_script() -> tuple[str, str, dict[str, Any]]:
    reasoning, _, rest = ANSWER.removeprefix("<think>").partition("</think>")
    content, _, call = rest.partition("<tool_call>")
    return reasoning, content, json.loads(call.partition("</tool_call>")[0])
