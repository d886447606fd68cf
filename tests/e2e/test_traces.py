"""One request is one trace over orchestrator and render tier, as a collector gets it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import httpx

from tests.support.otlp import CLIENT, SERVER, Span, receiving
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server

STREAM, WHOLE = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
"""Trace ids."""
CALLER = "00f067aa0ba902b7"
CHAT = "/v1/chat/completions"
ASK = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


def only(spans: Iterable[Span], service: str, name: str) -> Span:
    [found] = [span for span in spans if (span.service, span.name) == (service, name)]
    return found


async def test_the_spans_of_a_request_are_one_tree(
    smollm2_dir: Path, prefill_engine: ServerProcess, decode_engine: ServerProcess, tmp_path: Path
) -> None:
    async with receiving() as receiver:
        config = tmp_path / "orchestrator.toml"
        config.write_text(f'[tracing]\nendpoint = "{receiver.url}"\n')
        render = render_tier_server(
            smollm2_dir, "--served-model-name", "smollm2", "--otlp-traces-endpoint", receiver.url,
            log_dir=tmp_path,
        )  # fmt: skip
        with render:
            orchestrator = orchestrator_server(
                "--config", config, "--render", render.url, "--prefill", prefill_engine.url,
                "--decode", decode_engine.url, log_dir=tmp_path,
            )  # fmt: skip
            with orchestrator:
                async with httpx.AsyncClient(base_url=orchestrator.url, timeout=60) as client:
                    for trace, stream in ((STREAM, True), (WHOLE, False)):
                        headers = {"traceparent": f"00-{trace}-{CALLER}-01"}
                        response = await client.post(CHAT, json=ASK | {"stream": stream}, headers=headers)
                        assert response.status_code == 200
                # What is recorded is sent at the latest when a process ends.
                await asyncio.to_thread(orchestrator.stop)
            await asyncio.to_thread(render.stop)
    assert {span.trace for span in receiver.spans} == {STREAM, WHOLE}
    members = {"prefill": prefill_engine.url, "decode": decode_engine.url}
    check_tree([span for span in receiver.spans if span.trace == STREAM], "stream chat", members)
    check_tree([span for span in receiver.spans if span.trace == WHOLE], f"POST {CHAT}/derender", members)


def check_tree(spans: list[Span], derender: str, members: dict[str, str]) -> None:
    """``derender``: the name of that span of the render tier."""
    ours, tier = "pd-orchestrator", "render-tier"
    root = only(spans, ours, f"POST {CHAT}")
    assert (root.parent, root.kind) == (CALLER, SERVER)
    assert root.attributes["pd.outcome"] == "ok"
    assert root.attributes["gen_ai.usage.output_tokens"] == 5
    hops = {name: only(spans, ours, name) for name in ("render", "prefill", "decode", "derender")}
    assert {hop.parent for hop in hops.values()} == {root.id}
    assert {hop.kind for hop in hops.values()} == {CLIENT}
    assert not any(span.failed for span in spans)
    assert root.began <= hops["render"].began <= hops["render"].ended
    assert hops["render"].ended <= hops["prefill"].began <= hops["prefill"].ended <= hops["decode"].began
    if derender.startswith("stream"):
        # A stream is opened while the engines work.
        assert hops["derender"].began <= hops["prefill"].ended
    for role, url in members.items():
        assert hops[role].attributes["pd.member"] == url

    rendered, derendered = only(spans, tier, f"POST {CHAT}/render"), only(spans, tier, derender)
    assert (rendered.parent, rendered.kind) == (hops["render"].id, SERVER)
    assert (derendered.parent, derendered.kind) == (hops["derender"].id, SERVER)

    decisions = {event["pd.role"]: event for name, event in root.events if name == "pd.decision"}
    assert set(decisions) == {"render", "prefill", "decode"}
    assert decisions["decode"]["pd.winner"] == members["decode"]
    assert members["decode"] in decisions["decode"]["pd.candidates"][0]
