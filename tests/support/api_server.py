"""A real Kubernetes API server over a real etcd, on loopback.

``programs`` finds both: in ``KUBEBUILDER_ASSETS``, as envtest names its folder, or where
``scripts/kubernetes_api.sh`` has put them. An API server older than 1.21 does not know
``discovery.k8s.io/v1``: there EndpointSlices of that version are a custom resource.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.certificates import bare_authority
from tests.support.processes import ServerProcess, free_port

ROOT = Path(__file__).resolve().parents[2]
ADMIN = "the-admins-token"
NAMESPACE = "llm"
"""Of the committed manifests."""
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
OWN_SLICES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "endpointslices.discovery.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, stands for the built-in one"},
    },
    "spec": {
        "group": "discovery.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "endpointslices", "singular": "endpointslice", "kind": "EndpointSlice"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


@dataclass(frozen=True)
class Programs:
    etcd: Path
    api_server: Path

    def version(self) -> tuple[int, int]:
        """Of Kubernetes, major and minor."""
        said = subprocess.run([self.api_server, "--version"], capture_output=True, text=True, check=True)
        found = re.search(r"v(\d+)\.(\d+)", said.stdout)
        assert found is not None, said.stdout
        return int(found[1]), int(found[2])


def programs() -> Programs:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets is None:
        made = subprocess.run(
            [ROOT / "scripts" / "kubernetes_api.sh"], stdout=subprocess.PIPE, text=True, check=True
        )
        assets = made.stdout.strip()
    return Programs(Path(assets) / "etcd", Path(assets) / "kube-apiserver")


class Etcd(ServerProcess):
    def __init__(self, program: Path, directory: Path) -> None:
        def argv(port: int) -> list[str | Path]:
            clients, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
            return [
                *(program, "--data-dir", directory / "etcd", "--listen-client-urls", clients),
                *("--advertise-client-urls", clients, "--listen-peer-urls", peers),
                *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"),
            ]

        super().__init__("etcd", argv, log_dir=directory, ready_path="/health")

    def compact(self) -> None:
        """All history is forgotten; what is current stays."""
        with httpx.Client(base_url=self.url, trust_env=False) as client:
            revision = client.post("/v3/kv/range", json={"key": "AA=="}).json()["header"]["revision"]
            client.post("/v3/kv/compaction", json={"revision": revision, "physical": True}).raise_for_status()


class ApiServerProcess(ServerProcess):
    """RBAC, service accounts' tokens, a log of who asked what, and a certificate of an authority as bare as
    those of many clusters."""

    def __init__(self, found: Programs, etcd: Etcd, directory: Path) -> None:
        self.options: tuple[str, ...] = ()
        """More of the server's own, from its next start on."""
        self.built_in_slices = found.version() >= (1, 21)
        self.authority, shown = bare_authority(directory)
        self._audit = directory / "audit.log"
        policy, tokens, accounts = (directory / part for part in ("audit.json", "tokens.csv", "accounts.key"))
        policy.write_text(json.dumps(AUDIT))
        tokens.write_text(f'{ADMIN},admin,admin,"system:masters"\n')
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
        accounts.write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
        group = () if self.built_in_slices else ("--runtime-config", "discovery.k8s.io/v1beta1=false")

        def argv(port: int) -> list[str | Path]:
            return [
                found.api_server,
                *("--etcd-servers", etcd.url, "--etcd-compaction-interval", "0"),
                *("--bind-address", "127.0.0.1", "--secure-port", str(port)),
                *("--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.0.0.0/24"),
                *("--tls-cert-file", shown.certificate, "--tls-private-key-file", shown.key),
                *("--authorization-mode", "RBAC", "--token-auth-file", tokens),
                *("--service-account-issuer", "https://kubernetes.default.svc"),
                *("--service-account-signing-key-file", accounts, "--service-account-key-file", accounts),
                *("--audit-policy-file", policy, "--audit-log-path", self._audit),
                *group,
                *self.options,
            ]

        super().__init__(
            "kube-apiserver", argv, log_dir=directory, ready_path="/readyz", ready_within=180, scheme="https"
        )

    def client(self, token: str = ADMIN) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            verify=False,
            trust_env=False,
            timeout=30,
        )

    def serve_slices(self) -> None:
        """Returns when EndpointSlices of version 1 can be made."""
        with self.client() as admin:
            if not self.built_in_slices:
                apply(admin, OWN_SLICES)
            while admin.get(SLICES.format("default")).status_code == 404:
                time.sleep(0.1)

    def asked(self, user: str) -> list[dict[str, Any]]:
        """What the audit log has of ``user``; of a watch its beginning too."""
        entries = [json.loads(line) for line in self._audit.read_text().splitlines()]
        return [entry for entry in entries if entry["user"].get("username") == user]


def resource_path(admin: httpx.Client, manifest: dict[str, Any]) -> str | None:
    """Where objects of the kind are, by default in the chart's namespace; None when it is not served."""
    group = manifest["apiVersion"]
    base = f"/apis/{group}" if "/" in group else f"/api/{group}"
    known = admin.get(base)
    if known.status_code == 404:
        return None
    for resource in known.raise_for_status().json()["resources"]:
        if resource["kind"] == manifest["kind"] and "/" not in resource["name"]:
            namespace = manifest["metadata"].get("namespace", NAMESPACE)
            scope = f"/namespaces/{namespace}" if resource["namespaced"] else ""
            return f"{base}{scope}/{resource['name']}"
    return None


def apply(admin: httpx.Client, manifest: dict[str, Any]) -> httpx.Response:
    """Server-side apply. Raises ``AssertionError`` with what the server says against it."""
    path = resource_path(admin, manifest)
    assert path is not None, f"{manifest['kind']} is not served"
    reply = admin.patch(
        f"{path}/{manifest['metadata']['name']}",
        params={"fieldManager": "tests", "force": "true"},
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=json.dumps(manifest),
    )
    assert reply.status_code in (200, 201), f"{manifest['kind']} {manifest['metadata']['name']}: {reply.text}"
    return reply
