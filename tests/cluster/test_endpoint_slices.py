"""The orchestrator's source, following the EndpointSlices of a real API server over TLS with a real token."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.core.membership import EndpointSlices
from orchestrator.pool.sources.kubernetes import ApiServer, KubernetesSource, WatchLimits
from tests.cluster.gate import gate
from tests.orchestrator.pool.sources.told import Told, followed
from tests.support.api_server import SLICES, ApiServerProcess, Etcd, apply

USER = "system:serviceaccount:llm:pd-orchestrator"
LIMITS = WatchLimits(answer=30, watch=300, pause=0.05, longest_pause=1, line_bytes=1 << 20)


class Service:
    """Slices of one service, as the endpoints controller writes them."""

    def __init__(self, admin: httpx.Client) -> None:
        self._admin = admin
        self.name = f"decode-{uuid.uuid4().hex[:8]}"

    def put(self, name: str, *endpoints: dict[str, Any], namespace: str = "llm") -> None:
        labels = {
            "kubernetes.io/service-name": self.name,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            "disagg-frontend/generation": "a",
        }
        apply(
            self._admin,
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": f"{self.name}-{name}", "namespace": namespace, "labels": labels},
                "addressType": "IPv4",
                "endpoints": list(endpoints),
                "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
            },
        )

    def delete(self, name: str) -> None:
        self._admin.delete(f"{SLICES.format('llm')}/{self.name}-{name}").raise_for_status()

    def source(
        self, directory: Path, api: ApiServerProcess, token: str, port: int = 0, watch: float = LIMITS.watch
    ) -> KubernetesSource:
        """``port``: if not the server's own."""
        file = directory / "token"
        file.write_text(token)
        server = ApiServer(f"https://127.0.0.1:{port or api.port}", file, api.authority)
        slices = EndpointSlices("decode", "http", generation_label="disagg-frontend/generation")
        return KubernetesSource(self.name, "llm", slices, server, replace(LIMITS, watch=watch))


@pytest.fixture
def service(admin: httpx.Client) -> Service:
    return Service(admin)


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions or {"ready": True}}


def url(number: int) -> str:
    return f"http://10.1.0.{number}:8000"


async def draining(told: Told, expected: str) -> None:
    while [spec.url for spec in told.lists[-1] if spec.drain] != [expected]:
        await asyncio.sleep(0.05)


async def test_members_come_drain_and_go(
    tmp_path: Path, api: ApiServerProcess, token: str, service: Service
) -> None:
    service.put("x", endpoint("10.1.0.1"))
    service.put("x", endpoint("10.1.0.99"), namespace="elsewhere")
    async with followed(service.source(tmp_path, api, token)) as told:
        await told.urls(url(1))
        assert [spec.generation for spec in told.lists[-1]] == ["a"]
        service.put("x", endpoint("10.1.0.1"), endpoint("10.1.0.2", ready=False))
        service.put("y", endpoint("10.1.0.3"))
        await told.urls(url(1), url(3))
        service.put("x", endpoint("10.1.0.1"), endpoint("10.1.0.2"))
        await told.urls(url(1), url(2), url(3))
        leaves = endpoint("10.1.0.1", ready=False, serving=True, terminating=True)
        service.put("x", leaves, endpoint("10.1.0.2"))
        await draining(told, url(1))
        service.delete("x")
        await told.urls(url(3))
        service.delete("y")
        await told.urls()
        assert told.failures == []


async def test_it_goes_on_when_the_api_server_is_back(
    tmp_path: Path, api: ApiServerProcess, token: str, service: Service
) -> None:
    service.put("x", endpoint("10.1.0.1"))
    async with followed(service.source(tmp_path, api, token)) as told:
        await told.urls(url(1))
        port = api.port
        await asyncio.to_thread(api.kill)
        await told.failure()
        assert [spec.url for spec in told.lists[-1]] == [url(1)], "nobody left while there was no answer"
        await asyncio.to_thread(api.start, port)
        service.put("x", endpoint("10.1.0.2"))
        await told.urls(url(2))


async def test_a_version_that_was_compacted_away_begins_with_a_list(
    tmp_path: Path, api: ApiServerProcess, etcd: Etcd, token: str, service: Service
) -> None:
    # Its cache would still know the version.
    port, api.options = api.port, ("--watch-cache=false",)
    await asyncio.to_thread(api.stop)
    await asyncio.to_thread(api.start, port)
    service.put("x", endpoint("10.1.0.1"))
    async with gate(api.port) as way:
        source = service.source(tmp_path, api, token, port=way.port, watch=2)
        async with followed(source) as told:
            await told.urls(url(1))
            before = len(api.asked(USER))
            way.shut()
            await way.somebody_waits()  # the watch has ended, and the next one is on its way
            service.put("x", endpoint("10.1.0.2"))
            service.put("y", endpoint("10.1.0.3"))
            await asyncio.to_thread(etcd.compact)
            way.reopen()
            await told.urls(url(2), url(3))
            assert told.failures == []
            asked = [entry["verb"] for entry in api.asked(USER)[before:]]
            assert "list" in asked[asked.index("watch") :], (
                "the old version was refused, and so it listed again"
            )
