"""The chart: rendered by a real helm, valid for two Kubernetes versions, true to what our programs take."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from orchestrator import cli as orchestrator_cli
from orchestrator.settings import Settings as OrchestratorSettings
from render_tier import cli as render_cli
from render_tier.server.metrics import build_metrics
from render_tier.settings import Settings as RenderSettings
from tests.deploy.conftest import VARIANTS
from tests.support import charts
from tests.support.charts import Manifest

VERSIONS = ("1.36", "1.37")
ENGINES_DOC = (charts.ROOT / "docs" / "engines.md").read_text()
KINDS = {
    *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Role"),
    *("RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet"),
}
POD_KINDS = ("Deployment", "StatefulSet")
ENGINES = ("encode", "prefill", "decode")
COMPONENT = "app.kubernetes.io/component"
CUSTOM = json.loads((Path(__file__).parent / "custom_resources.json").read_text())


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Component, labels and spec of each pod template."""
    for workload in of_kind(manifests, *POD_KINDS):
        template = workload["spec"]["template"]
        labels = template["metadata"]["labels"]
        yield labels[COMPONENT], labels, template["spec"]


def container(spec: dict[str, Any]) -> dict[str, Any]:
    [only] = spec["containers"]
    return dict(only)


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """A label selector of Kubernetes, of which the chart uses ``In`` alone."""
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


# --- what is rendered


@pytest.mark.parametrize("name", charts.COMMITTED)
def test_plain_manifests_are_what_the_chart_renders(name: str) -> None:
    assert (charts.PLAIN / name).read_text() == charts.render(*charts.COMMITTED[name]), "run make manifests"


@pytest.mark.parametrize("values", charts.COMMITTED.values(), ids=charts.COMMITTED)
def test_helms_own_linter_has_no_complaint(values: tuple[Path, ...]) -> None:
    files = [word for path in values for word in ("--values", str(path))]
    command = [charts.HELM, "lint", "--strict", charts.CHART, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_object_names_its_namespace(manifests: list[Manifest]) -> None:
    """The plain manifests are applied without Helm, and the account's rights are bound in this one."""
    assert {manifest["metadata"].get("namespace") for manifest in manifests} == {"llm"}


@pytest.mark.parametrize("name", charts.CARRIED)
def test_the_chart_carries_the_alerts_and_the_board_as_they_are(name: str) -> None:
    assert (charts.CHART / "files" / name).read_bytes() == charts.CARRIED[name].read_bytes(), (
        "run make manifests"
    )


def test_alerts_and_board_are_rendered_unchanged_and_where_they_are_looked_for(
    renderings: dict[str, list[Manifest]],
) -> None:
    [alerts] = of_kind(renderings["full"], "PrometheusRule")
    assert alerts["spec"] == yaml.safe_load(charts.CARRIED["rules.yaml"].read_text())
    assert alerts["metadata"]["labels"]["release"] == "prometheus"
    [board] = [
        one for one in of_kind(renderings["full"], "ConfigMap") if one["metadata"]["name"] == "pd-board"
    ]
    [content] = board["data"].values()
    assert json.loads(content) == json.loads(charts.CARRIED["board.json"].read_text())
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    names = {one["metadata"]["name"] for one in renderings["default"]}
    assert names.isdisjoint({alerts["metadata"]["name"], "pd-board"})


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_for_kubernetes(renderings: dict[str, list[Manifest]], version: str) -> None:
    different = {json.dumps(one): one for manifests in renderings.values() for one in manifests}
    built_in = [one for one in different.values() if one["kind"] not in CUSTOM["$defs"]]
    assert {one["kind"] for one in built_in} == KINDS
    for manifest in built_in:
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_a_field_that_kubernetes_does_not_know_is_found(renderings: dict[str, list[Manifest]]) -> None:
    broken = json.loads(json.dumps(of_kind(renderings["default"], "StatefulSet")[0]))
    broken["spec"]["template"]["spec"]["containers"][0]["startupProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_custom_resources_have_the_fields_of_their_definitions(renderings: dict[str, list[Manifest]]) -> None:
    custom = [one for manifests in renderings.values() for one in manifests if one["kind"] in CUSTOM["$defs"]]
    assert {one["kind"] for one in custom} == {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
    for manifest in custom:
        kind = {"$schema": CUSTOM["$schema"], "$ref": f"#/$defs/{manifest['kind']}", "$defs": CUSTOM["$defs"]}
        jsonschema.validate(manifest, kind)
        advanced = manifest["spec"].get("advanced")
        if advanced:  # the same type as that of a HorizontalPodAutoscaler
            [hpa] = of_kind(renderings["default"], "HorizontalPodAutoscaler")
            behavior = advanced["horizontalPodAutoscalerConfig"]["behavior"]
            again = {**hpa, "spec": {**hpa["spec"], "behavior": behavior}}
            kubernetes_validate.validate(again, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("model.vision=some", "got string, want boolean"),
        ("render.replica=3", "additional properties 'replica' not allowed"),
        ("engines.prefill.replicas=many", "got string, want integer"),
        ("engines.prefill.gpus=2", "additional properties 'gpus' not allowed"),
        ("render.autoscaling.kind=vpa", "value must be one of"),
        ("render.settings.port=9000", "false schema"),
        ("orchestrator.settings.server.host=::1", "false schema"),
        ("orchestrator.settings.membership.kubernetes=none", "false schema"),
        ("orchestrator.extraMembers[0].role=router", "value must be one of"),
        ("engines.sideChannelPort=99999", "maximum"),
        ("networkPolicy.clients[0].pods=all", "additional properties 'pods' not allowed"),
        ("prometheusRule.enabled=perhaps", "got string, want boolean"),
        ("grafanaBoard.labels.grafana_dashboard=1", "got number, want string"),
    ],
)
def test_values_are_typed(assignment: str, complaint: str) -> None:
    with pytest.raises(charts.RenderError, match=re.escape(complaint)):
        charts.render(sets=(assignment,))


# --- held against our programs


def options(app: typer.Typer, command: str) -> set[str]:
    group = typer.main.get_command(app)
    return {flag for parameter in group.commands[command].params for flag in parameter.opts}  # type: ignore[attr-defined]


def test_our_commands_and_their_flags_exist(manifests: list[Manifest]) -> None:
    known = {
        "render-tier": options(render_cli.app, "serve"),
        "pd-orchestrator": options(orchestrator_cli.app, "serve"),
    }
    for component, _, spec in pods(manifests):
        if component not in ("render", "orchestrator"):
            continue
        program, command, *words = container(spec)["command"]
        assert command == "serve"
        assert {word for word in words if word.startswith("--")} <= known[program]
        [config] = [word for word in words if not word.startswith("--")]
        folders = {mount["mountPath"] for mount in container(spec)["volumeMounts"]}
        assert str(Path(config).parent) in folders


def test_settings_that_the_chart_writes_are_settings(
    renderings: dict[str, list[Manifest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    written = 0
    for name, manifests in renderings.items():
        services = {service["metadata"]["name"]: service for service in of_kind(manifests, "Service")}
        for config in of_kind(manifests, "ConfigMap"):
            if config["metadata"]["labels"][COMPONENT] != "render":
                continue
            render = RenderSettings.model_validate(tomllib.loads(config["data"]["render-tier.toml"]))
            assert (render.host, render.port, render.tool_call_parser) == ("0.0.0.0", 8000, "hermes")
            written += 1
        for secret in of_kind(manifests, "Secret"):
            settings = OrchestratorSettings.model_validate(
                yaml.safe_load(secret["stringData"]["orchestrator.yaml"])
            )
            assert settings.server.host == "0.0.0.0"
            roles = {member.role: member.service for member in settings.membership.kubernetes}
            assert roles["decode"].endswith("-decode")
            assert ("prefill" in roles) == (name != "three-hops")
            assert ("encode" in roles) == (name == "encoders")
            for member in settings.membership.kubernetes:
                assert member.port in {port["name"] for port in services[member.service]["spec"]["ports"]}
            assert settings.limits.body_bytes == (12582912 if name == "admin-key" else 25165824)
            written += 1
    assert written == 6 + 4  # render tiers, and orchestrators without a Secret of their own


def test_engines_are_started_with_flags_and_variables_that_are_tested_against_vllm(
    manifests: list[Manifest],
) -> None:
    """tests/vllm/test_engines_doc.py holds those of docs/engines.md against vLLM itself."""
    for component, _, spec in pods(manifests):
        if component not in ENGINES:
            continue
        engine = container(spec)
        words = [*engine["command"], *engine["args"]]
        assert words[:2] == ["vllm", "serve"]
        flags = {word for word in words if word.startswith("--")}
        assert len(flags & {"--tokens-only", "--enable-scale-out"}) == 1
        assert flags <= set(re.findall(r"--[a-z][a-z-]+", ENGINES_DOC))
        named = {one["name"] for one in engine["env"] if one["name"].startswith(("VLLM_", "UCX_"))}
        assert named <= set(re.findall(r"\b(?:VLLM|UCX)_[A-Z_]+\b", ENGINES_DOC))
        assert ("--kv-transfer-config" in flags) == (component != "encode")
        if component == "encode":
            continue
        transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
        assert transfer["kv_role"] == {"prefill": "kv_producer", "decode": "kv_consumer"}[component]
        assert "engine_id" not in transfer
        host = next(one for one in engine["env"] if one["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST")
        assert host["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def embeddings(manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
    """By component, what engines are told of the encodings of images."""
    told = {}
    for component, _, spec in pods(manifests):
        words = container(spec).get("args", [])
        if "--ec-transfer-config" in words:
            told[component] = json.loads(words[words.index("--ec-transfer-config") + 1])
            folder = Path(told[component]["ec_connector_extra_config"]["shared_storage_path"])
            [mount] = [one for one in container(spec)["volumeMounts"] if one["name"] == "encodings"]
            assert folder.parent == Path(mount["mountPath"])
            assert not mount.get("readOnly")
    return told


@pytest.mark.parametrize(("prefills", "prompts"), [(2, "prefill"), (0, "decode")])
def test_encoders_and_the_engines_that_compute_prompts_share_a_folder(prefills: int, prompts: str) -> None:
    """With the arguments of docs/engines.md, which tests/vllm holds against vLLM itself."""
    sets, _ = VARIANTS["encoders"]
    told = embeddings(charts.objects(charts.render(sets=(*sets, f"engines.prefill.replicas={prefills}"))))
    assert {component: one.pop("ec_role") for component, one in told.items()} == {
        "encode": "ec_producer",
        prompts: "ec_consumer",
    }
    assert told["encode"] == told[prompts]
    [shown] = re.findall(r"'(\{\"ec_connector\".*?\})'", ENGINES_DOC)
    assert told["encode"].keys() == json.loads(shown).keys() - {"ec_role"}
    assert told["encode"]["ec_connector"] == json.loads(shown)["ec_connector"]
    newer = embeddings(charts.objects(charts.render(sets=(*sets, "engines.generation=b"))))
    assert newer["encode"]["ec_connector_extra_config"] != told["encode"]["ec_connector_extra_config"]


@pytest.mark.parametrize("left_out", [0, 2])
def test_encoders_without_vision_or_a_folder_are_refused(left_out: int) -> None:
    sets, _ = VARIANTS["encoders"]
    with pytest.raises(charts.RenderError, match=r"engines\.encode: encoders are of a model with vision"):
        charts.render(sets=tuple(one for at, one in enumerate(sets) if at != left_out))


@pytest.mark.parametrize(
    ("sets", "tag"),
    [
        ((), ""),
        (("model.videoFiles=true",), ""),
        (("model.vision=true",), "-multimodal"),
        (("model.vision=true", "model.videoFiles=true"), "-multimodal-video"),
    ],
)
def test_the_render_tiers_image_is_that_of_what_the_model_takes(sets: tuple[str, ...], tag: str) -> None:
    [image] = [
        container(spec)["image"]
        for component, _, spec in pods(charts.objects(charts.render(sets=sets)))
        if component == "render"
    ]
    assert re.fullmatch(rf"render-tier:\d+\.\d+\.\d+{tag}", image)
    if tag:
        assert f"AS {tag[1:]}\n" in (charts.ROOT / "deploy" / "docker" / "Dockerfile").read_text()


def test_lease_and_generation_agree_between_engines_and_orchestrator() -> None:
    sets = ("engines.leaseSeconds=45", "engines.generation=b")
    manifests = charts.objects(charts.render(sets=sets))
    [secret] = of_kind(manifests, "Secret")
    settings = yaml.safe_load(secret["stringData"]["orchestrator.yaml"])
    assert settings["lease"]["engine_seconds"] == 45
    for component, _, spec in pods(manifests):
        if component in ("prefill", "decode"):
            words = container(spec)["args"]
            transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
            assert transfer["kv_connector_extra_config"]["kv_lease_duration"] == 45
    services = {service["metadata"]["name"]: service["metadata"] for service in of_kind(manifests, "Service")}
    for member in settings["membership"]["kubernetes"]:
        if member["role"] != "render":
            assert services[member["service"]]["labels"][member["generation_label"]] == "b"


def test_metrics_that_scale_exist(renderings: dict[str, list[Manifest]]) -> None:
    [scaled] = of_kind(renderings["full"], "ScaledObject")
    asked = [one["metadata"]["query"] for one in scaled["spec"]["triggers"] if one["type"] == "prometheus"]
    exported = {
        sample
        for family in build_metrics().registry.collect()
        for sample in (family.name, f"{family.name}_total", f"{family.name}_sum", f"{family.name}_count")
    }
    named = {name for query in asked for name in re.findall(r"\brender_tier_\w+", query)}
    assert named == {"render_tier_queue_wait_seconds_sum", "render_tier_prompt_tokens_total"}
    assert named <= exported
    [service] = [one for one in of_kind(renderings["full"], "Service") if "render" in one["metadata"]["name"]]
    assert all(f'namespace="llm",service="{service["metadata"]["name"]}"' in query for query in asked)


def test_probes_ask_what_the_servers_answer(manifests: list[Manifest]) -> None:
    table = (charts.ROOT / "README.md").read_text().partition("## Endpoints")[2]
    rows = {row.split("|")[1].strip(): row for row in table.splitlines() if row.startswith("|")}
    row = {"render": "render tier", "orchestrator": "orchestrator"}
    for component, _, spec in pods(manifests):
        one = container(spec)
        ports = {port["name"]: port["containerPort"] for port in one["ports"]}
        assert ports["http"] == 8000
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = one[probe]["httpGet"]
            assert asked["port"] == "http"
            assert f"`{asked['path']}`" in rows[row.get(component, "embedded engine")]
        # What is busy or without members is not restarted for it.
        assert one["livenessProbe"]["httpGet"]["path"] == "/health"


# --- objects fit each other


def test_selectors_and_references_find_something(manifests: list[Manifest]) -> None:
    labels = [labels for _, labels, _ in pods(manifests)]
    names = {(one["kind"], one["metadata"]["name"]) for one in manifests}
    assert len(names) == len(manifests)
    for one in manifests:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            assert any(spec["selector"].items() <= pod.items() for pod in labels)
        if one["kind"] in ("PodDisruptionBudget", *POD_KINDS):
            assert sum(selects(spec["selector"], pod) for pod in labels) == 1
        if one["kind"] == "ServiceMonitor":
            services = [service["metadata"]["labels"] for service in of_kind(manifests, "Service")]
            assert sum(selects(spec["selector"], service) for service in services) == 1
        if one["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            assert ("Deployment", spec["scaleTargetRef"]["name"]) in names
            [target] = [
                two for two in of_kind(manifests, "Deployment") if "render" in two["metadata"]["name"]
            ]
            assert "replicas" not in target["spec"]
        if one["kind"] == "StatefulSet":
            assert ("Service", spec["serviceName"]) in names
        if one["kind"] == "RoleBinding":
            assert ("Role", one["roleRef"]["name"]) in names
            assert all(("ServiceAccount", subject["name"]) in names for subject in one["subjects"])
    for _, _, spec in pods(manifests):
        mounted = {mount["name"] for mount in container(spec)["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_the_orchestrators_account_may_follow_endpoint_slices_and_nothing_else(
    renderings: dict[str, list[Manifest]],
) -> None:
    [role] = of_kind(renderings["default"], "Role")
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    for component, _, spec in pods(renderings["default"]):
        assert spec["automountServiceAccountToken"] == (component == "orchestrator")


def test_pods_end_after_their_longest_stream(manifests: list[Manifest]) -> None:
    for component, _, spec in pods(manifests):
        paused = container(spec)["lifecycle"]["preStop"]["sleep"]["seconds"]
        left = spec["terminationGracePeriodSeconds"] - paused
        # A stream moves from one render tier to another; elsewhere it stays until its end.
        assert left > (40 if component == "render" else 600)
        if component in ENGINES:
            words = container(spec)["args"]
            assert 600 <= int(words[words.index("--shutdown-timeout") + 1]) < left


def test_longer_requests_make_for_longer_ends() -> None:
    sets = ("orchestrator.settings.timeouts.request=1800", "render.settings.shutdown_timeout=90")
    for component, _, spec in pods(charts.objects(charts.render(sets=sets))):
        assert spec["terminationGracePeriodSeconds"] > (100 if component == "render" else 1800)


def test_pods_are_confined(manifests: list[Manifest]) -> None:
    for _, _, spec in pods(manifests):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        confined = container(spec)["securityContext"]
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"]["drop"] == ["ALL"]
        assert set(confined["capabilities"].get("add", ())) <= {"IPC_LOCK"}
        assert spec["enableServiceLinks"] is False
        assert "memory" in container(spec)["resources"]["limits"]
        # What is written goes to volumes: temporary files, and what HOME names.
        assert "/tmp" in {mount["mountPath"] for mount in container(spec)["volumeMounts"]}


def test_replicas_are_spread(manifests: list[Manifest]) -> None:
    for _, labels, spec in pods(manifests):
        spread = spec["topologySpreadConstraints"]
        keys = [one["topologyKey"] for one in spread]
        assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert all(selects(one["labelSelector"], labels) for one in spread)


# --- who reaches whom


def reaches(manifests: list[Manifest], source: dict[str, str], target: str, port: int) -> bool:
    """Whether network policies let a pod of the same namespace, labelled ``source``, reach a component."""
    [(labels, spec)] = [(labels, spec) for component, labels, spec in pods(manifests) if component == target]
    named = {one["name"]: one["containerPort"] for one in container(spec)["ports"]}
    policies = [
        one["spec"]
        for one in of_kind(manifests, "NetworkPolicy")
        if selects(one["spec"]["podSelector"], labels)
    ]
    return not policies or any(
        _lets_in(rule.get("from"), source) and any(_covers(one, named, port) for one in rule["ports"])
        for policy in policies
        for rule in policy["ingress"]
    )


def _lets_in(peers: list[dict[str, Any]] | None, source: dict[str, str]) -> bool:
    return peers is None or any(
        "namespaceSelector" not in peer and selects(peer["podSelector"], source)
        for peer in peers
        if "podSelector" in peer
    )


def _covers(allowed: dict[str, Any], named: dict[str, int], port: int) -> bool:
    first = named[allowed["port"]] if isinstance(allowed["port"], str) else allowed["port"]
    return bool(first <= port <= allowed.get("endPort", first))


@pytest.mark.parametrize("variant", ["default", "full", "encoders"])
def test_who_reaches_whom(renderings: dict[str, list[Manifest]], variant: str) -> None:
    manifests = renderings[variant]
    labels = {component: labels for component, labels, _ in pods(manifests)} | {"stranger": {"app": "x"}}
    http, side, ucx = 8000, 5600, 40000
    may = {
        (source, target, port)
        for source in labels
        for target in labels.keys() - {"stranger"}
        for port in (http, side, ucx)
        if reaches(manifests, labels[source], target, port)
    }
    engines = ("prefill", "decode")
    expected = {("orchestrator", target, http) for target in labels.keys() - {"orchestrator", "stranger"}}
    expected |= {(a, b, port) for a in engines for b in engines for port in (side, ucx)}
    if variant != "full":  # clients are not named
        expected |= {(source, "orchestrator", http) for source in labels}
    assert may == expected


def test_the_side_channels_of_all_data_parallel_ranks_are_open_between_engines() -> None:
    manifests = charts.objects(charts.render(sets=("engines.sideChannelPort=7000",)))
    labels = {component: labels for component, labels, _ in pods(manifests)}
    assert reaches(manifests, labels["decode"], "prefill", 7007)
    assert not reaches(manifests, labels["decode"], "prefill", 5600)
    assert not reaches(manifests, labels["orchestrator"], "prefill", 7000)
