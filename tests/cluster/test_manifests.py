"""The committed manifests, applied to a real API server: its defaults, its validation, no field lost."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support import charts
from tests.support.api_server import apply, programs, resource_path

CUSTOM = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
"""Of operators: their definitions are not part of Kubernetes."""
YOUNGER = {"HorizontalPodAutoscaler": (1, 23), "PodDisruptionBudget": (1, 21)}
"""The release from which the versions that the chart uses are served."""

YOUNGER_FIELDS = {"endPort": (1, 22), "lifecycle": (1, 29)}
"""Likewise. Of ``lifecycle`` it is ``preStop.sleep``."""


def known(value: Any, version: tuple[int, int]) -> Any:
    """Without the fields that are younger than ``version``."""
    if isinstance(value, list):
        return [known(one, version) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: known(one, version)
        for key, one in value.items()
        if key not in YOUNGER_FIELDS or version >= YOUNGER_FIELDS[key]
    }


def lost(sent: Any, kept: Any, path: str = "") -> list[str]:
    """What was sent and is not there, or is something else."""
    if isinstance(sent, dict):
        kept = kept if isinstance(kept, dict) else {}
        return [one for key in sent for one in lost(sent[key], kept.get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        kept = kept if isinstance(kept, list) else []
        pairs = zip(sent, [*kept, *[None] * len(sent)], strict=False)
        return [one for index, (old, new) in enumerate(pairs) for one in lost(old, new, f"{path}[{index}]")]
    return [] if sent == kept else [f"{path}: {sent!r} became {kept!r}"]


@pytest.mark.parametrize("name", charts.COMMITTED)
def test_manifests_are_accepted_as_they_are(admin: httpx.Client, name: str) -> None:
    """Strict where the server knows that: an unknown field is an error there, and is lost elsewhere."""
    namespace = name.removesuffix(".yaml")
    apply(admin, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    version = programs().version()
    manifests = charts.objects((charts.PLAIN / name).read_text())
    young = {one["kind"] for one in manifests if version < YOUNGER.get(one["kind"], version)}
    refused, changed, unserved = [], [], set()
    for manifest in manifests:
        if manifest["kind"] in CUSTOM:
            continue
        manifest = known(manifest, version)
        manifest["metadata"]["namespace"] = namespace
        path = resource_path(admin, manifest)
        if path is None:
            unserved.add(manifest["kind"])
            continue
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        reply = admin.post(path, params={"fieldValidation": "Strict"}, json=manifest)
        if reply.status_code == 201:
            manifest.pop("stringData", None)  # only written; it is read as data
            changed += [f"{what}{one}" for one in lost(manifest, reply.json())]
        else:
            refused.append(f"{what}: {reply.text}")
    assert refused == []
    assert changed == []
    assert unserved == young
