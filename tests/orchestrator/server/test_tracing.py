"""Traces of requests that go wrong, and nothing of OpenTelemetry's SDK where none is wanted."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.settings import Settings
from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, GENERATE, Status
from tests.support.otlp import receiving

ASK = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4, "stream": True}


def parents(stack: Stack) -> dict[str, str]:
    """Trace and parent that each hop was told, by role; the last call of each."""
    tiers = {"render": (stack.render, f"{CHAT}/render"), "prefill": (stack.prefill[-1], GENERATE)}
    return {role: tier.headers[path][-1].get("traceparent", "") for role, (tier, path) in tiers.items()}


async def test_every_attempt_is_a_span_and_its_member_is_told_so(launch: Launch) -> None:
    async with receiving() as receiver:
        settings = {"tracing": {"endpoint": receiver.url}}
        async with launch(prefill=2, settings=settings) as stack:
            for tier in stack.prefill:
                tier.faults[GENERATE] = [Status(503)]
            failed = await stack.http.post(CHAT, json=ASK)
            assert failed.status_code == 503
            good = await stack.http.post(CHAT, json=ASK)
            assert good.status_code == 200
            await stack.settled()
            told = parents(stack)
        roots = sorted(receiver.named(f"POST {CHAT}"), key=lambda span: span.began)
        assert [(root.failed, root.parent) for root in roots] == [(True, ""), (False, "")]
        assert len({root.trace for root in roots}) == 2
        assert roots[0].attributes["http.response.status_code"] == 503
        attempts = receiver.named("prefill")
        assert sorted(span.failed for span in attempts) == [False, True, True]
        assert {span.parent for span in attempts if span.failed} == {roots[0].id}
        assert not [span for span in receiver.named("decode") if span.trace == roots[0].trace]
        [render] = [span for span in receiver.named("render") if span.trace == roots[1].trace]
        assert told["render"].startswith(f"00-{render.trace}-{render.id}-")
        choices = [event["pd.role"] for name, event in roots[0].events if name == "pd.decision"]
        assert choices == ["render", "prefill", "prefill"]


async def test_a_callers_decision_not_to_record_is_kept_and_passed_on(launch: Launch) -> None:
    async with receiving() as receiver:
        async with launch(settings={"tracing": {"endpoint": receiver.url}}) as stack:
            trace = "4bf92f3577b34da6a3ce929d0e0e4736"
            headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-00"}
            response = await stack.http.post(CHAT, json=ASK, headers=headers)
            assert response.status_code == 200
            await stack.settled()
            told = parents(stack)
        assert not receiver.spans
        assert all(value.startswith(f"00-{trace}-") and value.endswith("-00") for value in told.values())


async def test_without_an_endpoint_the_callers_context_goes_on_as_it_came(launch: Launch) -> None:
    async with launch() as stack:
        context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        response = await stack.http.post(CHAT, json=ASK, headers={"traceparent": context})
        assert response.status_code == 200
        await stack.settled()
        assert set(parents(stack).values()) == {context}


def test_nothing_of_opentelemetry_is_imported_where_it_is_off() -> None:
    packages = "orchestrator.server.app, render_tier.server.app"
    program = f"import sys, {packages}; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_endpoint_without_the_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = lambda _name: None  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(ValidationError, match="extra otel"):
        Settings.model_validate({"tracing": {"endpoint": "http://collector:4318/v1/traces"}})
