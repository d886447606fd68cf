"""NIXL where it is not installed, and claims that ask for it. Transfers: tests/vllm/test_embedded_nixl.py."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from orchestrator.embedded import nixl_memory
from orchestrator.embedded.assembly import EngineOptions, build_surface
from orchestrator.embedded.transfer_protocol import Kind, Refuse, decode_header, decode_message, encode
from tests.orchestrator.embedded.engines import Client, prompt, serving
from tests.orchestrator.embedded.test_kv_transfer_faults import HEADER, connect, hello

PROMPT = prompt(50)


def test_without_nixl_the_engine_says_how_to_get_it(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_memory, "MODULES", ("no_nixl_here._api",))
    with pytest.raises(nixl_memory.NixlError, match="pip install --no-deps nixl-cu12"):
        build_surface(EngineOptions(model=tiny_model, transfer_over="nixl"))


def test_a_claim_over_nixl_is_refused_where_only_sockets_are(tiny_model: Path) -> None:
    with serving(tiny_model, role="prefill") as prefill:
        assert refusal(prefill).reason == "transfer"
        assert prefill.running.engine.gauges().leases == 1, "the claim spent nothing"


def refusal(prefill: Client) -> Refuse:
    params = prefill.prefill(PROMPT)
    claim = msgspec.structs.replace(hello(prefill, params), transfer="nixl")
    with connect(params) as claimant:
        claimant.sendall(encode(Kind.HELLO, claim))
        kind, length = decode_header(claimant.recv(HEADER.size), 1000)
        assert kind is Kind.REFUSE
        return decode_message(claimant.recv(length), Refuse)
