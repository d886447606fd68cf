"""``/status``, draining and ``pd-orchestrator status`` on a stack that works."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.status_command import page
from tests.orchestrator.conftest import Launch, Stack, until

BODY = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4}


async def ask(stack: Stack, **more: Any) -> httpx.Response:
    return await stack.http.post("/v1/chat/completions", json=BODY | more)


async def status(stack: Stack) -> dict[str, Any]:
    reply = await stack.http.get("/status")
    assert reply.status_code == 200
    answer: dict[str, Any] = reply.json()
    return answer


async def test_the_status_tells_what_is_under_way_and_what_was(launch: Launch) -> None:
    settings = {"declared": {"engines": {"tensor_parallel": 1, "revision": "7"}}}
    async with launch(settings=settings) as stack:
        assert (await ask(stack)).status_code == 200
        stack.decode[0].hold.clear()
        asked = asyncio.create_task(ask(stack))
        await stack.decode[0].waiting.wait()
        now = await status(stack)
        stack.decode[0].hold.set()
        await asked
        [prefill], [decode] = now["pools"]["prefill"], now["pools"]["decode"]
        assert (decode["state"], decode["in_flight"], decode["breaker"]) == ("in", 1, "closed")
        assert prefill["leases"] == 1
        assert prefill["capabilities"]["tensor_parallel"] == {"value": 1, "verified": True}, "from its answer"
        assert decode["capabilities"]["tensor_parallel"] == {"value": 1, "verified": False}
        assert decode["capabilities"]["revision"] == {"value": "7", "verified": False}
        assert now["queues"]["decode"]["active"] == 1
        assert now["in_flight"] == 1
        assert now["latency"]["ttft"]["count"] == 1
        assert 0 < now["latency"]["ttft"]["p50_ms"] <= now["latency"]["ttft"]["p99_ms"]
        assert now["config"] == stack.services.settings.digest()
        await stack.settled()
        assert (await status(stack))["pools"]["prefill"][0]["leases"] == 0


async def test_an_open_breaker_shows_in_status_and_metric(launch: Launch) -> None:
    async with launch(decode=2) as stack:
        avoided = list(stack.services.decode_pool.members)[1]
        for _ in range(stack.services.settings.health.breaker_threshold):
            stack.services.decode_pool.failed(avoided)
        members = (await status(stack))["pools"]["decode"]
        assert [member["breaker"] for member in members] == ["closed", "open"]
        lines = (await stack.http.get("/metrics")).text.splitlines()
        values = [line.rsplit(" ", 1) for line in lines if line.startswith("pd_member_breaker_open{")]
        assert [float(value) for labels, value in values if avoided.url in labels] == [1.0]
        assert sum(float(value) for _, value in values) == 1


async def test_a_drained_member_finishes_and_gets_nothing_new(launch: Launch) -> None:
    async with launch(decode=2, settings={"selection": {"decode": "round_robin"}}) as stack:
        first, second = stack.decode
        for tier in stack.decode:
            tier.hold.clear()
        asked = [asyncio.create_task(ask(stack, stream=True)) for _ in range(2)]
        await first.waiting.wait()
        await second.waiting.wait()
        reply = await stack.http.post("/admin/drain", json={"member": first.url + "/"})
        assert reply.json() == {
            "members": [
                {"role": "decode", "url": first.url, "state": "draining", "in_flight": 1, "leases": 0}
            ]
        }
        for tier in stack.decode:
            tier.hold.set()
        assert all("t103" in reply.text for reply in await asyncio.gather(*asked))
        before = first.sent_tokens
        for _ in range(4):
            assert (await ask(stack)).status_code == 200
        assert first.sent_tokens == before
        await stack.http.post("/admin/undrain", json={"member": first.url, "role": "decode"})
        for _ in range(2):
            assert (await ask(stack)).status_code == 200
        assert first.sent_tokens > before
        await stack.settled()


async def test_a_drained_orchestrator_finishes_and_takes_nothing_new(launch: Launch) -> None:
    async with launch() as stack:
        stack.decode[0].hold.clear()
        asked = asyncio.create_task(ask(stack, stream=True))
        await stack.decode[0].waiting.wait()
        reply = await stack.http.post("/admin/drain", content=b"")
        assert reply.json() == {"draining": True, "in_flight": 1}
        refused = await ask(stack)
        assert refused.status_code == 503
        assert "draining" in refused.json()["error"]["message"]
        ready = await stack.http.get("/ready")
        assert (ready.status_code, ready.json()["draining"]) == (503, True)
        stack.decode[0].hold.set()
        assert "t103" in (await asked).text
        await stack.http.post("/admin/undrain", content=b"{}")
        assert (await ask(stack)).status_code == 200
        await stack.settled()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"member": "http://nobody:1"}', 404),
        (b'{"member": 3}', 400),
        (b'{"members": []}', 400),
        (b"[", 400),
        (b'{"member": "' + b"x" * 70_000 + b'"}', 400),
    ],
)
async def test_what_cannot_be_drained_is_refused(launch: Launch, body: bytes, code: int) -> None:
    async with launch() as stack:
        reply = await stack.http.post("/admin/drain", content=body)
        assert reply.status_code == code
        assert reply.json()["error"]["code"] == code


async def test_with_an_admin_key_these_routes_need_it(launch: Launch) -> None:
    async with launch(settings={"server": {"admin_key": "s3cret"}}) as stack:
        for method, path in (("GET", "/status"), ("POST", "/admin/drain"), ("POST", "/admin/undrain")):
            for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
                assert (await stack.http.request(method, path, headers=headers)).status_code == 401
        assert not stack.services.draining
        right = {"Authorization": "Bearer s3cret"}
        assert (await stack.http.get("/status", headers=right)).status_code == 200
        assert "s3cret" not in (await stack.http.get("/status", headers=right)).text


async def test_the_terminal_shows_the_status(launch: Launch) -> None:
    async with launch(decode=2) as stack:
        await ask(stack)
        stack.decode[1].facts = {"kv_transfer_config": {"kv_role": "kv_producer"}}
        await stack.decode[1].kill()
        await stack.services.check_health()
        await stack.decode[1].revive()
        await stack.services.check_health()
        await until(lambda: bool(list(stack.services.decode_pool.members)[1].differences))
        shown = await asyncio.to_thread(CliRunner().invoke, app, ["status", "--url", stack.url])
        assert shown.exit_code == 0, shown.output
        assert stack.decode[1].url in shown.output
        assert "kept out" in shown.output
        assert "KEPT OUT: kv_role is kv_producer, a decode member needs kv_consumer" in shown.output
        as_json = await asyncio.to_thread(CliRunner().invoke, app, ["status", "--url", stack.url, "--json"])
        assert page(json.loads(as_json.output)).splitlines()[2].split()[:3] == ["ROLE", "MEMBER", "STATE"]
        await stack.http.post("/admin/drain", content=b"")
        assert (
            await asyncio.to_thread(CliRunner().invoke, app, ["status", "--url", stack.url])
        ).exit_code == 3
        stack.decode[0].held.clear()


def test_the_terminal_says_when_nobody_answers() -> None:
    shown = CliRunner().invoke(app, ["status", "--url", "http://127.0.0.1:1", "--timeout", "2"])
    assert shown.exit_code == 1
    assert "no status from http://127.0.0.1:1" in shown.output
