"""One Kubernetes API server for this folder, with the chart's orchestrator account in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import charts
from tests.support.api_server import ApiServerProcess, Etcd, apply, programs

ACCOUNT = ("ServiceAccount", "Role", "RoleBinding")
NAMESPACES = ("llm", "elsewhere")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs an API server."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(programs().etcd, tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture(scope="session")
def api(etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    with ApiServerProcess(programs(), etcd, tmp_path_factory.mktemp("api")) as process:
        process.serve_slices()
        with process.client() as client:
            for name in NAMESPACES:
                apply(client, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            for manifest in charts.objects((charts.PLAIN / "default.yaml").read_text()):
                if manifest["kind"] in ACCOUNT:
                    apply(client, manifest)
        yield process


@pytest.fixture
def admin(api: ApiServerProcess) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client


@pytest.fixture
def token(admin: httpx.Client) -> str:
    """As a pod of the orchestrator has one."""
    path = "/api/v1/namespaces/llm/serviceaccounts/pd-orchestrator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = admin.post(path, json=request).raise_for_status().json()
    return str(answer["status"]["token"])
