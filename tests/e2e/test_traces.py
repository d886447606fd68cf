"""One request is one trace over client, orchestrator, render tier and engines, as a collector gets it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import httpx
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

from tests.support.otlp import CLIENT, SERVER, Span, receiving
from tests.support.processes import engine_server, orchestrator_server, render_tier_server

CHAT = "/v1/chat/completions"
ASK = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


def only(spans: Iterable[Span], service: str, name: str) -> Span:
    [found] = [span for span in spans if (span.service, span.name) == (service, name)]
    return found


async def test_the_spans_of_a_request_are_one_tree(smollm2_dir: Path, tmp_path: Path) -> None:
    async with receiving() as receiver:
        config = tmp_path / "orchestrator.toml"
        config.write_text(f'[tracing]\nendpoint = "{receiver.url}"\n')
        traced = ("--served-model-name", "smollm2", "--otlp-traces-endpoint", receiver.url)
        render = render_tier_server(smollm2_dir, *traced, log_dir=tmp_path)
        prefill, decode = (
            engine_server("--model", smollm2_dir, *traced, role=role, log_dir=tmp_path)
            for role in ("prefill", "decode")
        )
        with render, prefill, decode:
            orchestrator = orchestrator_server(
                "--config", config, "--render", render.url, "--prefill", prefill.url,
                "--decode", decode.url, log_dir=tmp_path,
            )  # fmt: skip
            with orchestrator:
                await ask(orchestrator.url, receiver.url)
                # What is recorded is sent at the latest when a process ends.
                await asyncio.to_thread(orchestrator.stop)
            for server in (render, prefill, decode):
                await asyncio.to_thread(server.stop)
    members = {"prefill": prefill.url, "decode": decode.url}
    derenders = {"stream": "stream chat", "whole": f"POST {CHAT}/derender"}
    for name, derender in derenders.items():
        caller = only(receiver.spans, "client", name)
        check_tree([span for span in receiver.spans if span.trace == caller.trace], caller, derender, members)
    assert len({span.trace for span in receiver.spans}) == len(derenders)


async def ask(orchestrator: str, collector: str) -> None:
    """A request of each kind, by a client that traces what it does."""
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "client"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=collector)))
    tracer = provider.get_tracer("client")
    async with httpx.AsyncClient(base_url=orchestrator, timeout=60) as client:
        for name in ("stream", "whole"):
            with tracer.start_as_current_span(name, kind=SpanKind.CLIENT):
                headers: dict[str, str] = {}
                inject(headers)
                response = await client.post(CHAT, json=ASK | {"stream": name == "stream"}, headers=headers)
                assert response.status_code == 200
    await asyncio.to_thread(provider.shutdown)


def check_tree(spans: list[Span], caller: Span, derender: str, members: dict[str, str]) -> None:
    """``caller`` is the client's, ``derender``: the name of that span of the render tier."""
    ours, tier = "pd-orchestrator", "render-tier"
    root = only(spans, ours, f"POST {CHAT}")
    assert (root.parent, root.kind) == (caller.id, SERVER)
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
    computed = [span for span in spans if span.service == "embedded-engine"]
    assert sorted(span.parent for span in computed) == sorted(hops[role].id for role in members)
    assert {(span.name, span.kind) for span in computed} == {("llm_request", SERVER)}
    assert {span.attributes["gen_ai.request.max_tokens"] for span in computed} == {1, 5}
    known = {span.id for span in spans}
    assert [span for span in spans if span.parent not in known] == [caller], "one tree"
    assert len(spans) == 10

    decisions = {event["pd.role"]: event for name, event in root.events if name == "pd.decision"}
    assert set(decisions) == {"render", "prefill", "decode"}
    assert decisions["decode"]["pd.winner"] == members["decode"]
    assert members["decode"] in decisions["decode"]["pd.candidates"][0]
