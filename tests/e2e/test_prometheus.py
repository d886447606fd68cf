"""A real Prometheus scrapes both services as docs/operations.md says, and its queries find something."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from tests.support.processes import ServerProcess
from tests.support.stacks import metric

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text("utf-8").partition("\n## Prometheus\n")[2]
QUERIES = re.findall(r"^\| `(.+?)` \|", PAGE, re.M)
NAMES = {
    name
    for page in ("operations.md", "orchestrator.md", "derender.md")
    for name in re.findall(r"\b(?:pd|render_tier)_[a-z_]+", (DOCS / page).read_text("utf-8"))
    if name not in ("pd_timing", "render_tier_server")
}


@pytest.fixture
def prometheus(
    orchestrator: ServerProcess, render_tier: ServerProcess, tmp_path: Path
) -> Iterator[ServerProcess]:
    """Configured as the page says, but for the addresses and the interval."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1])  # type: ignore[index]
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
    servers = {"orchestrator": orchestrator, "render-tier": render_tier}
    for job in config["scrape_configs"]:
        [static] = job["static_configs"]
        static["targets"] = [servers[job["job_name"]].url.removeprefix("http://")]
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    process = ServerProcess(
        "prometheus",
        lambda port: [
            program, f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ],
        log_dir=tmp_path,
        ready_path="/-/ready",
    )  # fmt: skip
    with process:
        yield process


def ask(prometheus: ServerProcess, path: str, **parameters: str) -> Any:
    reply = httpx.get(f"{prometheus.url}/api/v1/{path}", params=parameters)
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]


def values(prometheus: ServerProcess, query: str) -> list[float]:
    """Of each series that it finds, now."""
    return [float(series["value"][1]) for series in ask(prometheus, "query", query=query)["result"]]


def test_the_documented_queries_find_what_a_live_system_does(
    prometheus: ServerProcess, client: openai.OpenAI, render_tier: ServerProcess, orchestrator: ServerProcess
) -> None:
    assert len(QUERIES) == PAGE.count("\n| `") > 10
    # One that the render tier gives to a thread.
    long = {"model": "smollm2", "messages": [{"role": "user", "content": "word " * 6000}]}
    silent, end = set(QUERIES), time.monotonic() + 60
    while silent:
        assert time.monotonic() < end, (silent, ask(prometheus, "targets"), prometheus.log())
        asked = [{"role": "user", "content": "Hello"}]
        for part in client.chat.completions.create(
            model="smollm2", messages=asked, max_tokens=8, stream=True
        ):
            assert part.choices
        httpx.post(f"{render_tier.url}/v1/chat/completions/render", json=long).raise_for_status()
        time.sleep(0.5)  # a scrape
        silent = {query for query in silent if not any(map(math.isfinite, values(prometheus, query)))}

    jobs = {target["labels"]["job"] for target in ask(prometheus, "targets")["activeTargets"]}
    assert jobs == {"orchestrator", "render-tier"}
    # Also those that count what has not happened here.
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAMES}
    assert families - set(ask(prometheus, "metadata")) == set()
    assert len(families) > 40
    answered = metric(orchestrator.url, "pd_requests_total")
    while [answered] != values(prometheus, "sum(pd_requests_total)"):
        assert time.monotonic() < end, answered
        time.sleep(0.1)
