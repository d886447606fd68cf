"""What the orchestrator's account may do, asked of a real API server with a real token of it."""

from __future__ import annotations

import pytest

from tests.support.api_server import SLICES, ApiServerProcess

OWN = SLICES.format("llm")


def test_it_may_list_and_watch_the_slices_of_its_namespace(api: ApiServerProcess, token: str) -> None:
    with api.client(token) as account:
        assert account.get(OWN).status_code == 200
        assert account.get(OWN, params={"watch": "1", "timeoutSeconds": "1"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{OWN}/pd-decode-1"),
        ("POST", OWN),
        ("PATCH", f"{OWN}/pd-decode-1"),
        ("DELETE", f"{OWN}/pd-decode-1"),
        ("DELETE", OWN),
        ("GET", SLICES.format("elsewhere")),
        ("GET", SLICES.format("elsewhere") + "?watch=1"),
        ("GET", "/apis/discovery.k8s.io/v1/endpointslices"),
        *(
            ("GET", f"/api/v1/namespaces/llm/{kind}")
            for kind in ("pods", "secrets", "configmaps", "services")
        ),
        ("POST", "/api/v1/namespaces/llm/serviceaccounts/pd-orchestrator/token"),
        ("GET", "/apis/apps/v1/namespaces/llm/statefulsets"),
        ("GET", "/api/v1/nodes"),
    ],
)
def test_it_may_do_nothing_else(api: ApiServerProcess, token: str, method: str, path: str) -> None:
    kind = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    content = b"{}" if method in ("PATCH", "POST") else None
    with api.client(token) as account:
        reply = account.request(method, path, headers=kind, content=content)
    assert reply.status_code == 403, reply.text
    assert "system:serviceaccount:llm:pd-orchestrator" in reply.json()["message"]


def test_without_its_token_nothing_is_told(api: ApiServerProcess) -> None:
    with api.client("no-token-of-this-server") as stranger:
        assert stranger.get(OWN).status_code == 401
