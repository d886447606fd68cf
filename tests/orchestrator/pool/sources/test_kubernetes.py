"""Members from an API server that speaks the documented list and watch protocol of Kubernetes: chunked JSON
lines, bookmarks, 410 in both places, tokens."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from orchestrator.core.membership import EndpointSlices, MembershipError
from orchestrator.pool.sources.kubernetes import ApiServer, KubernetesSource, WatchLimits
from tests.orchestrator.pool.sources.told import followed
from tests.support.certificates import Authority, Pair, bare_authority

LIMITS = WatchLimits(answer=5, watch=60, pause=0.005, longest_pause=0.05, line_bytes=10_000)
PATH = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"


class Cluster:
    """One namespace with the slices of one service. What happens is an event with a version of its own; a
    watch gives those since the version it names, or 410 when these are no longer known."""

    def __init__(self) -> None:
        self.version = 100
        self.slices: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.token = "first"
        self.requests: list[dict[str, str]] = []
        self.refuse: int | None = None
        self.watching = 0
        self._news = asyncio.Condition()
        self._broken = 0

    def put(self, name: str, *addresses: str, **conditions: bool) -> None:
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self._happen(kind, name, addresses, conditions or {"ready": True})

    def delete(self, name: str) -> None:
        self._happen("DELETED", name, (), {})

    def forget_events(self) -> None:
        """The history is compacted: versions up to now are too old."""
        self.version += 1
        self.events.clear()

    async def tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def break_watches(self) -> None:
        self._broken += 1
        await self.tell()

    def _happen(self, kind: str, name: str, addresses: tuple[str, ...], conditions: dict[str, bool]) -> None:
        self.version += 1
        item = {
            "metadata": {"name": name, "namespace": "llm", "resourceVersion": str(self.version)},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
            "ports": [{"name": "http", "protocol": "TCP", "port": 8000}],
        }
        if kind == "DELETED":
            self.slices.pop(name)
        else:
            self.slices[name] = item
        self.events.append((self.version, kind, item))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if self.refuse is not None:
            return web.json_response({"kind": "Status", "code": self.refuse}, status=self.refuse)
        assert request.query["labelSelector"] == "kubernetes.io/service-name=decode"
        if request.query.get("watch") == "1":
            return await self._watch(request)
        return web.json_response(
            {
                "kind": "EndpointSliceList",
                "apiVersion": "discovery.k8s.io/v1",
                "metadata": {"resourceVersion": str(self.version)},
                "items": list(self.slices.values()),
            }
        )

    async def is_watched(self) -> None:
        while not self.watching:
            await asyncio.sleep(0.005)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json;stream=watch"})
        await response.prepare(request)
        oldest = self.events[0][0] if self.events else self.version + 1
        if since < oldest - 1:
            status = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}
            await self._line(response, "ERROR", status)
            return response
        broken = self._broken
        self.watching += 1
        try:
            while broken == self._broken:
                for version, kind, item in self.events:
                    if version > since:
                        since = version
                        await self._line(response, kind, item)
                async with self._news:
                    while self.version <= since and broken == self._broken:
                        await self._news.wait()
                if not self.events and broken == self._broken:
                    since = self.version
                    await self._line(response, "BOOKMARK", {"metadata": {"resourceVersion": str(since)}})
        finally:
            self.watching -= 1
        return response

    @staticmethod
    async def _line(response: web.StreamResponse, kind: str, item: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        # A line may come in pieces.
        await response.write(line[:7])
        await response.write(line[7:])


@asynccontextmanager
async def cluster(
    tmp_path: Path, shown: Pair | None = None, authority: Path | None = None
) -> AsyncIterator[tuple[Cluster, KubernetesSource]]:
    api = Cluster()
    token = tmp_path / "token"
    token.write_text("first\n")
    app = web.Application()
    app.router.add_get(PATH, api.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    context = None
    if shown is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(shown.certificate, shown.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    host, port = runner.addresses[0][:2]
    server = ApiServer(f"http{'' if shown is None else 's'}://{host}:{port}", token, authority)
    try:
        yield api, KubernetesSource("decode", "llm", EndpointSlices("decode", "http"), server, LIMITS)
    finally:
        await runner.cleanup()


async def test_the_list_and_then_every_event_is_told(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, source):
        api.put("a", "10.0.0.1")
        async with followed(source) as told:
            await told.urls("http://10.0.0.1:8000")
            api.put("b", "10.0.0.2")
            await api.tell()
            await told.urls("http://10.0.0.1:8000", "http://10.0.0.2:8000")
            api.put("a", "10.0.0.1", serving=True, terminating=True)
            await api.tell()
            while not told.lists[-1][0].drain:
                await asyncio.sleep(0.005)
            api.delete("a")
            await api.tell()
            await told.urls("http://10.0.0.2:8000")
            assert told.failures == []


async def test_a_watch_that_ends_goes_on_where_it_was(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, source):
        api.put("a", "10.0.0.1")
        async with followed(source) as told:
            await told.urls("http://10.0.0.1:8000")
            await api.is_watched()
            api.put("b", "10.0.0.2")
            await api.break_watches()
            await told.urls("http://10.0.0.1:8000", "http://10.0.0.2:8000")
            assert [query.get("watch") for query in api.requests].count(None) == 1, "one list is enough"
            assert told.failures == []


async def test_a_version_that_is_too_old_begins_with_a_list(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, source):
        api.put("a", "10.0.0.1")
        async with followed(source) as told:
            await told.urls("http://10.0.0.1:8000")
            await api.is_watched()
            api.put("a", "10.0.0.7")
            api.forget_events()
            await api.break_watches()
            await told.urls("http://10.0.0.7:8000")
            assert told.failures == []


@pytest.mark.parametrize("status", [403, 410, 500, 503])
async def test_an_api_server_that_fails_changes_nothing(tmp_path: Path, status: int) -> None:
    async with cluster(tmp_path) as (api, source):
        api.put("a", "10.0.0.1")
        async with followed(source) as told:
            await told.urls("http://10.0.0.1:8000")
            api.refuse = status
            await api.break_watches()
            await told.failure()
            api.put("a", "10.0.0.7")
            api.refuse = None
            await told.urls("http://10.0.0.7:8000")
            assert all(len(specs) == 1 for specs in told.lists)


async def test_a_rotated_token_is_read(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, source):
        api.put("a", "10.0.0.1")
        async with followed(source) as told:
            await told.urls("http://10.0.0.1:8000")
            api.token = "second"
            await api.break_watches()
            assert "401" in await told.failure()
            (tmp_path / "token").write_text("second\n")
            api.put("a", "10.0.0.7")
            await told.urls("http://10.0.0.7:8000")


async def test_an_event_without_end_is_a_failure(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, source), followed(source) as told:
        await told.urls()
        api.put("a", *(f"10.0.{i // 250}.{i % 250}" for i in range(1000)))
        await api.tell()
        assert "bytes" in await told.failure()


@pytest.fixture
def strict_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts are as strict as Python 3.13's are."""
    create = ssl.create_default_context

    def strict(*, cafile: str | None = None) -> ssl.SSLContext:
        context = create(cafile=cafile)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.usefixtures("strict_python")
async def test_a_clusters_authority_without_key_identifiers_is_trusted(tmp_path: Path) -> None:
    authority, shown = bare_authority(tmp_path)
    async with cluster(tmp_path, shown, authority) as (api, source):
        api.put("a", "10.0.0.1")
        async with followed(source) as told:
            await told.urls("http://10.0.0.1:8000")
            assert told.failures == []


async def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    _, shown = bare_authority(tmp_path)
    other = Authority(tmp_path, "other").file
    async with cluster(tmp_path, shown, other) as (_, source), followed(source) as told:
        assert "CERTIFICATE_VERIFY_FAILED" in await told.failure()
        assert told.lists == []


def test_a_pod_knows_its_api_server() -> None:
    with pytest.raises(MembershipError, match="KUBERNETES_SERVICE_HOST"):
        ApiServer.of_the_pod({})
    found = ApiServer.of_the_pod({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
    assert found.url == "https://[fd00::1]:443"
    assert str(found.token).endswith("/token")
