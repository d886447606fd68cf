from __future__ import annotations

import functools
from collections.abc import Iterator

import kubernetes_validate.utils
import pytest

from tests.support import charts

VARIANTS: dict[str, tuple[tuple[str, ...], bool]] = {
    "default": ((), False),
    "full": ((), True),
    "encoders": (
        (
            "model.vision=true",
            "engines.encode.replicas=2",
            "engines.encodings.volume.persistentVolumeClaim.claimName=encodings",
        ),
        False,
    ),
    "three-hops": (("engines.prefill.replicas=0", "render.autoscaling.kind=none"), False),
    "engines-alone": (
        ("render.enabled=false", "orchestrator.enabled=false", "networkPolicy.enabled=false"),
        True,
    ),
    "render-alone": (
        ("orchestrator.enabled=false", "engines.prefill.replicas=0", "engines.decode.replicas=0"),
        False,
    ),
    "admin-key": (
        (
            "orchestrator.settings.server.admin_key=an-admin-key",
            "orchestrator.settings.limits.body_bytes=12582912",
            "serviceMonitor.enabled=true",
            "render.settings.max_body_bytes=33554432",
        ),
        False,
    ),
}
"""Name: values to set, and whether on top of deploy/helm/examples/full.yaml."""


@pytest.fixture(scope="session")
def renderings() -> dict[str, list[charts.Manifest]]:
    """Objects of each variant."""
    return {
        name: charts.objects(charts.render(*((charts.FULL,) if full else ()), sets=sets))
        for name, (sets, full) in VARIANTS.items()
    }


@pytest.fixture(params=VARIANTS)
def manifests(
    request: pytest.FixtureRequest, renderings: dict[str, list[charts.Manifest]]
) -> list[charts.Manifest]:
    return renderings[request.param]


@pytest.fixture(scope="session", autouse=True)
def schemas_are_read_once() -> Iterator[None]:
    """A megabyte of definitions, which the package reads for each object."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(kubernetes_validate.utils.schema_contents)
        patch.setattr(kubernetes_validate.utils, "schema_contents", once)
        yield
