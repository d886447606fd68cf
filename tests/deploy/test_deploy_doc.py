"""docs/deploy.md: values, files, metrics and settings that it names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.settings import Settings
from render_tier.server.metrics import build_metrics
from render_tier.settings import Settings as RenderSettings
from tests.support import charts

TEXT = (charts.ROOT / "docs" / "deploy.md").read_text()
VALUES = yaml.safe_load((charts.CHART / "values.yaml").read_text())
BLOCKS = re.findall(r"^ *```yaml\n(.*?)^ *```$", TEXT, re.M | re.S)


def has(tree: Any, path: str) -> bool:
    for key in path.split("."):
        if key not in tree:
            return False
        tree = tree[key]
    return True


def test_values_in_the_table_exist() -> None:
    table = TEXT.partition("| value | set it because |")[2].partition("\n\n")[0]
    named = [one for row in table.splitlines()[2:] for one in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(named) > 12
    shorthands = {"*.": "engines.prefill.", ".": "networkPolicy."}
    for path in named:
        short = next((prefix for prefix in shorthands if path.startswith(prefix)), "")
        full = shorthands.get(short, "") + path.removeprefix(short)
        assert has(VALUES, full.replace("*", "prefill")), path


def test_files_exist() -> None:
    for path in re.findall(r"`((?:deploy|scripts|tests)/[\w./-]+)[`:]", TEXT):
        assert (charts.ROOT / path).exists(), path


def test_settings_and_metrics_exist() -> None:
    sections = "|".join(Settings.model_fields)
    defaults = Settings.model_validate({}).model_dump()
    for path in re.findall(rf"`((?:{sections})\.\w+)`", TEXT):
        assert has(defaults, path), path
    families = {family.name for family in build_metrics().registry.collect()}
    named = re.findall(r"render_tier_[a-z_]+(?=\[)", TEXT)
    assert {re.sub("_(sum|total)$", "", name) for name in named} <= families
    assert len(named) == 2


def test_an_orchestrator_reaches_the_engines_of_the_next_release(tmp_path: Path) -> None:
    [block] = [block for block in BLOCKS if "engineClients" in block]
    values = tmp_path / "values.yaml"
    values.write_text(block)
    [policy] = [
        one["spec"]
        for one in charts.objects(charts.render(values))
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "pd-engines"
    ]
    sources = [
        one["podSelector"]["matchLabels"] for one in policy["ingress"][0]["from"] if "podSelector" in one
    ]
    pods = [one["spec"]["template"] for one in charts.objects(charts.render()) if one["kind"] == "Deployment"]
    [labels] = [
        pod["metadata"]["labels"] for pod in pods if "orchestrator" in pod["metadata"]["labels"].values()
    ]
    assert len(sources) == 2
    assert sources[1].items() <= labels.items()


def test_more_members_are_taken_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    [block] = [block for block in BLOCKS if "extraMembers" in block]
    values = tmp_path / "values.yaml"
    values.write_text(block)
    [secret] = [one for one in charts.objects(charts.render(values)) if one["kind"] == "Secret"]
    settings = Settings.model_validate(yaml.safe_load(secret["stringData"]["orchestrator.yaml"]))
    services = [member.service for member in settings.membership.kubernetes]
    assert services == ["pd-render", "pd-prefill", "pd-decode", "next-prefill", "next-decode"]


def test_a_model_with_vision_is_installed_as_shown(tmp_path: Path) -> None:
    block, encoders = (block for block in BLOCKS if "vision" in block)
    values = tmp_path / "values.yaml"
    values.write_text(block)
    pods = {}
    for one in charts.objects(charts.render(values)):
        if one["kind"] in ("Deployment", "StatefulSet"):
            [pods[one["metadata"]["name"]]] = one["spec"]["template"]["spec"]["containers"]
    assert f"--target multimodal -t {pods['pd-render']['image']} ." in TEXT
    for role in ("prefill", "decode"):
        assert "--enable-scale-out" in pods[f"pd-{role}"]["args"]
        assert "--tokens-only" not in pods[f"pd-{role}"]["args"]
    render = RenderSettings.model_fields
    images = sum(render[f"image_{part}_bytes"].default for part in ("file_memory", "item_memory", "cache"))
    for pod, bound in (("pd-render", images), ("pd-orchestrator", Settings().limits.features_bytes)):
        memory = pods[pod]["resources"]["limits"]["memory"]
        assert int(memory.removesuffix("Gi")) * 2**30 > 1.5 * bound

    values.write_text(encoders)
    stateful = {
        one["metadata"]["name"]: one["spec"]["replicas"]
        for one in charts.objects(charts.render(values))
        if one["kind"] == "StatefulSet"
    }
    assert stateful == {"pd-encode": 1, "pd-prefill": 2, "pd-decode": 2}


def test_services_are_named_as_the_chart_names_them() -> None:
    services = {
        one["metadata"]["name"]: one["spec"]["ports"][0]["port"]
        for one in charts.objects(charts.render())
        if one["kind"] == "Service"
    }
    urls = re.findall(r"http://([\w-]+)\.llm\.svc:(\d+)", TEXT)
    assert len(urls) == 2
    [route] = [yaml.safe_load(block) for block in BLOCKS if "HTTPRoute" in block]
    urls += [(one["name"], one["port"]) for rule in route["spec"]["rules"] for one in rule["backendRefs"]]
    assert all(services[name] == int(port) for name, port in urls)
