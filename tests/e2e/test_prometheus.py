"""A real Prometheus scrapes all services as docs/operations.md says. What that page, the board and the alerts
ask finds something in a system at work, and alerts fire in one that is not well."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from orchestrator.demo.script import write_script
from tests.support.processes import ServerProcess, engine_server, orchestrator_server, render_tier_server
from tests.support.stacks import metric

ROOT = Path(__file__).resolve().parents[2]
DOCS, DEPLOY = ROOT / "docs", ROOT / "deploy"
PAGE = (DOCS / "operations.md").read_text("utf-8").partition("\n## Prometheus\n")[2]
DOCUMENTED = re.findall(r"^\| `(.+?)` \|", PAGE, re.M)
WINDOWS = {"$__rate_interval": "1m", "$__range": "5m"}
"""What Grafana puts in for its variables."""
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
NAMES = {
    name
    for page in ("operations.md", "orchestrator.md", "derender.md")
    for name in re.findall(r"\b(?:pd|render_tier)_[a-z_]+", (DOCS / page).read_text("utf-8"))
    if name not in ("pd_timing", "render_tier_server")
}


def board_queries() -> list[str]:
    panels = json.loads((DEPLOY / "grafana" / "board.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for variable, window in WINDOWS.items():
        queries = [query.replace(variable, window) for query in queries]
    assert not any("$" in query for query in queries)
    return queries


def metrics_in(query: str) -> set[str]:
    names = re.findall(r"\b(?:pd_|render_tier_|vllm:)\w+", query)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


EXPRESSIONS = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


@contextmanager
def scraping(
    jobs: Mapping[str, Collection[ServerProcess]], directory: Path, rules: Mapping[str, Any]
) -> Iterator[ServerProcess]:
    """Configured as the page says, but for the addresses and the intervals."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1])  # type: ignore[index]
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        [static] = job["static_configs"]
        static["targets"] = [server.url.removeprefix("http://") for server in jobs[job["job_name"]]]
    config["rule_files"] = ["rules.yaml"]
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    process = ServerProcess(
        "prometheus",
        lambda port: [
            program, f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ],
        log_dir=directory,
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


def silent(prometheus: ServerProcess, queries: Collection[str]) -> set[str]:
    """Those that find nothing."""
    return {query for query in queries if not any(map(math.isfinite, values(prometheus, query)))}


def check_rules(prometheus: ServerProcess) -> None:
    """Prometheus could evaluate every one."""
    rules = [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]
    assert {(rule["name"], rule["health"]) for rule in rules if rule["health"] != "ok"} == set()
    assert len(rules) == sum(len(group["rules"]) for group in RULES["groups"])


def firing(prometheus: ServerProcess) -> set[str]:
    alerts = ask(prometheus, "alerts")["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def test_the_documented_queries_find_what_a_live_system_does(
    client: openai.OpenAI,
    render_tier: ServerProcess,
    orchestrator: ServerProcess,
    prefill_engine: ServerProcess,
    decode_engine: ServerProcess,
    tmp_path: Path,
) -> None:
    assert len(DOCUMENTED) == PAGE.count("\n| `") > 10
    jobs = {
        "orchestrator": [orchestrator],
        "render-tier": [render_tier],
        "engines": [prefill_engine, decode_engine],
    }
    # One that the render tier gives to a thread.
    long = {"model": "smollm2", "messages": [{"role": "user", "content": "word " * 6000}]}
    with scraping(jobs, tmp_path, RULES) as prometheus:
        awaited, end = set(DOCUMENTED), time.monotonic() + 60
        while awaited:
            assert time.monotonic() < end, (awaited, ask(prometheus, "targets"), prometheus.log())
            asked = [{"role": "user", "content": "Hello"}]
            for part in client.chat.completions.create(
                model="smollm2", messages=asked, max_tokens=8, stream=True
            ):
                assert part.choices
            httpx.post(f"{render_tier.url}/v1/chat/completions/render", json=long).raise_for_status()
            time.sleep(0.5)  # a scrape
            awaited = silent(prometheus, awaited)

        # What finds nothing asks for what has not happened: every metric exists, none of it has samples.
        for query in silent(prometheus, board_queries()):
            series = [values(prometheus, f'{{__name__=~"{name}.*"}}') for name in metrics_in(query)]
            assert not all(series), query
        check_rules(prometheus)
        assert firing(prometheus) == set()

        scraped = {target["labels"]["job"] for target in ask(prometheus, "targets")["activeTargets"]}
        assert scraped == set(jobs)
        # Also those that count what has not happened here.
        names = NAMES.union(*map(metrics_in, EXPRESSIONS))
        families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
        assert families - set(ask(prometheus, "metadata")) == set()
        assert len(families) > 40
        answered = metric(orchestrator.url, "pd_requests_total")
        while [answered] != values(prometheus, "sum(pd_requests_total)"):
            assert time.monotonic() < end, answered
            time.sleep(0.1)


def at_once(rules: Mapping[str, Any]) -> dict[str, Any]:
    """The same without waiting."""
    return {
        "groups": [
            {**group, "rules": [{k: v for k, v in rule.items() if k != "for"} for rule in group["rules"]]}
            for group in rules["groups"]
        ]
    }


@pytest.fixture
def unwell(qwen3_dir: Path, tmp_path: Path) -> Iterator[dict[str, list[ServerProcess]]]:
    """One decode engine is a prefill engine, the members file is missing, and there is little room."""
    script = tmp_path / "script.json"
    write_script(qwen3_dir, script, 1)
    entries = json.loads(script.read_text())
    script.write_text(json.dumps([entry | {"first_token_ms": 300} for entry in entries]))
    settings = tmp_path / "orchestrator.toml"
    settings.write_text(
        f'[membership]\nfile = "{tmp_path / "members.toml"}"\nfile_interval = 0.2\n'
        '[policy]\nheld_kv = "lease"\nprefill_failure = "recompute"\n'
        "[admission]\nrequests = 2\nqueue = 1\n[health]\ninterval = 0.2\n"
    )
    with ExitStack() as exits:

        def engine(role: str, name: str) -> ServerProcess:
            options = ("--model", qwen3_dir, "--served-model-name", "qwen3", "--script", script)
            return exits.enter_context(engine_server(*options, role=role, log_dir=tmp_path, name=name))

        render = exits.enter_context(
            render_tier_server(qwen3_dir, "--served-model-name", "qwen3", log_dir=tmp_path)
        )
        prefill, decode = engine("prefill", "prefill"), engine("decode", "decode")
        other = engine("prefill", "other")
        members = ("--prefill", prefill.url, "--decode", decode.url, "--decode", other.url)
        orchestrator = exits.enter_context(
            orchestrator_server("--render", render.url, *members, "--config", settings, log_dir=tmp_path)
        )
        yield {"orchestrator": [orchestrator], "render-tier": [render], "engines": [prefill, decode, other]}


FORCED = {
    *("PdErrorBudgetBurnsFast", "PdErrorBudgetBurnsSlowly", "PdRefuses", "PdStrandedKv", "PdMemberDrifted"),
    *("PdMembershipUnread", "PdMemberDown", "PdRoleWithoutMembers", "PdDecodeComputesPrompts"),
}
UNSEEN = {
    *("pd_cache_predictions_total", "pd_kv_index_predictions_total", "pd_turn_reuse_total"),
    *("pd_hop_errors_total", "pd_retries_total", "render_tier_refused_total"),
}
"""On the board, and not forced here."""


def test_alerts_fire_in_a_system_that_is_not_well(
    unwell: dict[str, list[ServerProcess]], tmp_path: Path
) -> None:
    [orchestrator], prefill = unwell["orchestrator"], unwell["engines"][0]
    with scraping(unwell, tmp_path, at_once(RULES)) as prometheus:
        fired: set[str] = set()
        awaited = {query for query in board_queries() if not metrics_in(query) & UNSEEN}
        end = time.monotonic() + 60
        while awaited or not fired >= FORCED:
            assert time.monotonic() < end, (awaited, FORCED - fired, orchestrator.log())
            if fired >= {"PdStrandedKv", "PdRefuses"} and prefill.running:
                prefill.kill()
            ask_more_than_there_is_room_for(orchestrator)
            fired |= firing(prometheus)
            awaited = silent(prometheus, awaited)


def ask_more_than_there_is_room_for(orchestrator: ServerProcess) -> None:
    """Six at a time, of whom two leave soon."""
    request = {
        "model": "qwen3",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "stream": True,
    }

    def one(number: int) -> None:
        patience = 0.2 if number < 2 else 10
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(f"{orchestrator.url}/v1/chat/completions", json=request, timeout=patience)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(one, range(6)))
