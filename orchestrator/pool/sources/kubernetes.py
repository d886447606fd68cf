"""Members from the EndpointSlices of a Kubernetes service: a list, then a watch from the list's version on.

Two requests of the API are all that is needed, so they are made here over httpx. The watch ends now and then
by itself and goes on from the last version; a version that the server no longer knows, or a failure, begins
with a list again. What was told last holds meanwhile.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from orchestrator.core.membership import EndpointSlices, Expired, MembershipError
from orchestrator.pool.sources.source import Failed, Tell

SERVICE_LABEL: Final = "kubernetes.io/service-name"
"""Of every slice: the service it belongs to."""

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, the CA of the API server and its namespace."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """``token`` is read anew for every request, since it is rotated. ``ca`` None: the system's
    authorities."""

    url: str
    token: Path | None
    ca: Path | None

    @classmethod
    def of_the_pod(cls, environment: Mapping[str, str]) -> ApiServer:
        """Raises ``MembershipError`` outside a pod."""
        try:
            host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
        except KeyError as error:
            raise MembershipError(
                f"{error.args[0]} is not set: outside a pod the API server must be named"
            ) from error
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """Seconds. ``answer`` bounds a list, ``watch`` the life of a watch, ``pause`` is between failures, at
    first, and ``longest_pause`` at last. ``line_bytes`` bounds one event."""

    answer: float
    watch: float
    pause: float
    longest_pause: float
    line_bytes: int


class KubernetesSource:
    """``namespace`` None: the pod's own. ``slices`` says how they are read."""

    def __init__(
        self,
        service: str,
        namespace: str | None,
        slices: EndpointSlices,
        server: ApiServer,
        limits: WatchLimits,
    ) -> None:
        self.name = f"kubernetes {namespace + '/' if namespace else ''}{service}"
        self._service = service
        self._namespace = namespace
        self._slices = slices
        self._server = server
        self._limits = limits

    async def follow(self, tell: Tell, failed: Failed) -> None:
        pause = self._limits.pause
        while True:
            try:
                async with await self._client() as client:
                    namespace = self._namespace or await asyncio.to_thread(_read, ACCOUNT / "namespace")
                    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
                    await self._list(client, path)
                    tell(self._slices.members())
                    pause = self._limits.pause
                    while True:
                        await self._watch(client, path, tell)
                        await asyncio.sleep(pause)
            except Expired:
                pass  # what happened meanwhile is in the next list
            except (httpx.HTTPError, MembershipError, OSError, ssl.SSLError) as error:
                failed(f"{type(error).__name__}: {error}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._limits.longest_pause)

    async def _client(self) -> httpx.AsyncClient:
        ca, limits = self._server.ca, self._limits
        context = await asyncio.to_thread(ssl.create_default_context, cafile=None if ca is None else str(ca))
        # On from Python 3.13. CAs of many clusters (older ones of EKS and GKE, MicroK8s) lack the extensions
        # that it asks for; chain, validity and host name are verified without it too.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return httpx.AsyncClient(
            base_url=self._server.url,
            verify=context,
            timeout=httpx.Timeout(limits.answer),
            trust_env=False,
        )

    async def _headers(self) -> dict[str, str]:
        if self._server.token is None:
            return {}
        return {"Authorization": f"Bearer {await asyncio.to_thread(_read, self._server.token)}"}

    async def _list(self, client: httpx.AsyncClient, path: str) -> None:
        reply = await client.get(
            path,
            params={"labelSelector": f"{SERVICE_LABEL}={self._service}"},
            headers=await self._headers(),
        )
        reply.raise_for_status()
        self._slices.listed(reply.content)

    async def _watch(self, client: httpx.AsyncClient, path: str, tell: Tell) -> None:
        """Until the server ends it."""
        limits = self._limits
        params = {
            "labelSelector": f"{SERVICE_LABEL}={self._service}",
            "watch": "1",
            "resourceVersion": self._slices.version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(limits.watch)),
        }
        # Nothing may come for as long as the watch lives; a server that is gone without a word is noticed
        # after that.
        patience = httpx.Timeout(limits.answer, read=limits.watch + limits.answer)
        headers = await self._headers()
        async with client.stream("GET", path, params=params, headers=headers, timeout=patience) as reply:
            if reply.status_code == 410:
                raise Expired("the API server no longer knows the version")
            reply.raise_for_status()
            rest = b""
            async for piece in reply.aiter_bytes():
                *lines, rest = (rest + piece).split(b"\n")
                if max(map(len, (*lines, rest))) > limits.line_bytes:
                    raise MembershipError(f"an event of the watch has over {limits.line_bytes} bytes")
                changes = [self._slices.happened(line) for line in lines if line]
                if any(changes):
                    tell(self._slices.members())


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
