"""Board and alerts: of the shapes that Grafana and Prometheus take, about metrics that exist, with runbooks
that exist. tests/e2e/test_prometheus.py has a Prometheus ask their queries of a live system."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts import grafana_board
from tests.support.charts import ROOT

HERE = Path(__file__).parent
DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()
BOARD = json.loads((DEPLOY / "grafana" / "board.json").read_text())


def slug(title: str) -> str:
    """A heading's anchor."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


ANCHORS = {slug(title) for title in re.findall(r"^## (.+)$", RUNBOOKS, re.M)}


def promtool(*words: str | Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("prometheus is not installed")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- alerts


def test_the_rules_and_the_scraping_are_valid() -> None:
    promtool("check", "rules", DEPLOY / "prometheus" / "rules.yaml")
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")


def test_each_alert_fires_when_it_should_and_none_when_all_is_well() -> None:
    cases = yaml.safe_load((HERE / "rules_test.yaml").read_text())["tests"]
    awaited = json.dumps([test["promql_expr_test"] for test in cases])
    named = set(re.findall(r"(?:Pd|RenderTier)[A-Za-z]+", awaited))
    assert named == {alert["alert"] for alert in ALERTS}
    promtool("test", "rules", HERE / "rules_test.yaml")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_how_urgent_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket")
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/runbooks.md"
    assert anchor in ANCHORS
    [section] = [text for text in RUNBOOKS.split("\n## ")[1:] if slug(text.partition("\n")[0]) == anchor]
    assert f"`{alert['alert']}`" in section
    assert alert["annotations"]["summary"]


def test_runbooks_are_about_alerts_that_exist_and_link_to_what_exists() -> None:
    named = set(re.findall(r"`((?:Pd|RenderTiers?)[A-Z]\w+)`", RUNBOOKS))
    assert named == {alert["alert"] for alert in ALERTS}
    for page, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", RUNBOOKS):
        text = (ROOT / "docs" / page).read_text() if page else RUNBOOKS
        assert anchor in {slug(title) for title in re.findall(r"^##+ (.+)$", text, re.M)}, (page, anchor)


# --- board


def test_the_board_is_what_its_script_writes() -> None:
    assert grafana_board.board() == BOARD, "run make board"


def test_the_board_has_no_field_that_grafana_does_not_know() -> None:
    """Grafana's own library reads it and writes it again; what it does not know is lost on the way."""
    register_default_plugins()
    again = json.loads(json.dumps(Dashboard.from_json(BOARD), cls=JSONEncoder))
    assert list(lost(BOARD, again)) == []
    strange = {**BOARD, "panels": [{**BOARD["panels"][1], "tittle": "Requests"}]}
    again = json.loads(json.dumps(Dashboard.from_json(strange), cls=JSONEncoder))
    assert list(lost(strange, again)) == ["/panels/0/tittle"]


def lost(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where ``theirs`` lacks or changes something of ours."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs = [(f"{path}/{key}", value, theirs.get(key)) for key, value in ours.items()]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(f"{path}/{at}", *both) for at, both in enumerate(zip(ours, theirs, strict=True))]
    else:
        return [] if ours == theirs else [path]
    return [place for at, one, other in pairs for place in lost(one, other, at)]


def test_panels_have_their_places_and_their_runbooks() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)
    assert all(place["gridPos"]["x"] + place["gridPos"]["w"] <= 24 for place in panels)
    linked = {
        anchor for panel in panels for anchor in re.findall(r"runbooks\.md#([\w-]+)", json.dumps(panel))
    }
    assert len(linked) > 8
    assert linked <= ANCHORS


# --- how they are put in place


def test_compose_mounts_where_the_programs_look() -> None:
    content = yaml.safe_load((DEPLOY / "compose.monitoring.yaml").read_text())
    targets = {
        mount["target"]: DEPLOY / mount["source"]
        for service in content["services"].values()
        for mount in service["volumes"]
        if mount["type"] == "bind"
    }
    assert all(file.is_file() for file in targets.values())
    boards, prometheus = DEPLOY / "grafana" / "boards.yaml", DEPLOY / "prometheus"
    assert targets["/etc/grafana/provisioning/dashboards/boards.yaml"] == boards
    [provider] = yaml.safe_load(boards.read_text())["providers"]
    assert targets[f"{provider['options']['path']}/board.json"] == DEPLOY / "grafana" / "board.json"
    [option] = [word for word in content["services"]["prometheus"]["command"] if "config.file" in word]
    assert targets[option.partition("=")[2]] == prometheus / "prometheus.yml"
    scraping = yaml.safe_load((prometheus / "prometheus.yml").read_text())
    assert targets[f"/etc/prometheus/{scraping['rule_files'][0]}"] == prometheus / "rules.yaml"
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    named = {
        target.partition(":")[0]
        for job in scraping["scrape_configs"]
        for one in (*job.get("static_configs", ()), *job.get("dns_sd_configs", ()))
        for target in one.get("targets", one.get("names"))
    }
    assert named == set(services)
    provisioned = targets["/etc/grafana/provisioning/datasources/prometheus.yaml"]
    [source] = yaml.safe_load(provisioned.read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == grafana_board.SOURCE["type"]
