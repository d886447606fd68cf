"""Keys at the door: who is let in where, limits of each key, tenants' caches and sessions, keys given and
taken while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import structlog.testing
from typer.testing import CliRunner

from orchestrator.cli import app, load_settings
from orchestrator.core.access import Access, Tenancy
from orchestrator.core.keys import Grant, Keyring
from orchestrator.security_settings import KeyFile
from orchestrator.server.authority import keyring_of
from orchestrator.server.intake import read_request
from orchestrator.settings import parsed_config
from render_tier.protocol.errors import NotFound
from render_tier.protocol.validation import decode_object
from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import CHAT, GENERATE, Status, Tier, serving
from tests.support.api_keys import api_key, bearer
from tests.support.processes import orchestrator_server

ALICE, ALICES = api_key("alice", tenant="red")
BOB, BOBS = api_key("bob")
STRANGER, _ = api_key("stranger")
ADMIN = "an admin key of some length"
ASK: dict[str, Any] = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "a b c"}],
    "max_tokens": 3,
}
COUNT = "/v1/messages/count_tokens"
WORDS = " ".join("x" * (1 + i % 7) for i in range(300))


def auth(*keys: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "auth": {"keys": keys, "cache_salt_secret": "0123456789abcdef", **more},
        "server": {"admin_key": ADMIN},
    }


async def ask(stack: Stack, key: str | None, path: str = CHAT, **options: Any) -> httpx.Response:
    headers = options.pop("headers", {}) | ({} if key is None else bearer(key))
    return await stack.http.post(path, json=ASK | options, headers=headers)


def salts(stack: Stack) -> list[str]:
    return [request["cache_salt"] for request in stack.decode[0].requests[GENERATE]]


async def test_nothing_but_health_is_open_to_who_has_no_key(launch: Launch) -> None:
    async with launch(settings=auth(ALICES)) as stack:
        routes = stack.server.config.loaded_app.routes
        asked = 0
        for route in routes:
            path = route.path.replace("{id}", "x").replace("{name:path}", "x")
            for method in sorted(route.methods):
                for headers in ({}, bearer(STRANGER), {"x-api-key": STRANGER}, {"authorization": "Bearer"}):
                    answer = await stack.http.request(method, path, headers=headers)
                    expected = {200} if path in ("/health", "/ready") else {401}
                    assert {answer.status_code} == expected, (method, path)
                    asked += 1
        assert asked > 60
        assert (await stack.http.get("/nothing/here")).status_code == 401
        assert not stack.render.requests
        await stack.settled()


@pytest.mark.parametrize("key", ["", STRANGER, "sk-other", ALICE[:-1], ALICE + "x"])
async def test_the_official_clients_raise_their_own_errors(launch: Launch, key: str) -> None:
    async with launch(settings=auth(ALICES)) as stack:
        client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=key or "x", max_retries=0)
        with pytest.raises(openai.AuthenticationError) as raised:
            await client.chat.completions.create(**ASK)
        assert raised.value.code == "invalid_api_key"
        assert key not in str(raised.value) or not key
        await client.close()
        other = anthropic.AsyncAnthropic(base_url=stack.url, api_key=key or "x", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await other.messages.create(**ASK)
        assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index,call-overload]
        await other.close()


async def test_a_key_opens_under_either_header(launch: Launch) -> None:
    async with launch(settings=auth(ALICES, BOBS)) as stack:
        assert (await ask(stack, ALICE)).status_code == 200
        for headers in ({"x-api-key": BOB}, {"x-api-key": ALICE} | bearer(ALICE)):
            assert (await stack.http.post(CHAT, json=ASK, headers=headers)).status_code == 200
        both = await stack.http.post(CHAT, json=ASK, headers={"x-api-key": BOB} | bearer(ALICE))
        assert both.status_code == 401
        await stack.settled()


async def test_operators_have_a_key_of_their_own(launch: Launch) -> None:
    async with launch(settings=auth(ALICES)) as stack:
        for path in ("/metrics", "/status", "/admin/drain"):
            method = "POST" if path.startswith("/admin") else "GET"
            assert (await stack.http.request(method, path, headers=bearer(ALICE))).status_code == 401
        assert (await stack.http.get("/metrics", headers=bearer(ADMIN))).status_code == 200
        assert (await stack.http.get("/status", headers=bearer(ADMIN))).status_code == 200
        assert (await ask(stack, ADMIN)).status_code == 401
        refused = (await stack.http.get("/metrics", headers=bearer(ADMIN))).text
        assert 'pd_key_refusals_total{cause="invalid_key"} 4.0' in refused


async def test_without_an_admin_key_operators_are_on_this_machine(launch: Launch) -> None:
    async with launch(settings={"auth": {"keys": [ALICES]}}) as stack:
        assert (await stack.http.get("/metrics")).status_code == 200
        for headers in (
            {"x-forwarded-for": "127.0.0.1"},
            {"host": "evil.example"},
            {"origin": "http://evil"},
        ):
            for path in ("/metrics", "/status"):
                assert (await stack.http.get(path, headers=headers)).status_code == 403


async def test_requests_at_a_time_and_in_a_minute_have_their_limits(launch: Launch) -> None:
    few, fews = api_key("few", concurrent_requests=1)
    slow, slows = api_key("slow", requests_per_minute=2)
    async with launch(settings=auth(fews, slows, ALICES)) as stack:
        stack.render.hold.clear()
        first = asyncio.create_task(ask(stack, few))
        await until(lambda: bool(stack.render.requests))
        second = await ask(stack, few)
        assert (second.status_code, second.headers["retry-after"]) == (429, "2")
        assert second.json()["error"]["type"] == "RateLimitError"
        other = asyncio.create_task(ask(stack, ALICE))  # a limit of one key is none of another's
        stack.render.hold.set()
        assert (await first).status_code == (await other).status_code == 200
        assert (await ask(stack, few)).status_code == 200
        assert [(await ask(stack, slow)).status_code for _ in range(2)] == [200, 200]
        third = await ask(stack, slow, "/v1/messages")
        assert (third.status_code, third.headers["retry-after"]) == (429, "30")
        assert third.json()["error"]["type"] == "rate_limit_error"
        await stack.settled()


async def test_a_stream_that_its_client_leaves_gives_its_place_back(launch: Launch) -> None:
    few, fews = api_key("few", concurrent_requests=1)
    async with launch(pace=0.05, settings=auth(fews)) as stack:
        for _ in range(3):
            body = ASK | {"stream": True, "max_tokens": 200}
            async with stack.http.stream("POST", CHAT, json=body, headers=bearer(few)) as answer:
                assert answer.status_code == 200
                async for _line in answer.aiter_lines():
                    break
            await stack.settled()
        assert (await ask(stack, few)).status_code == 200


async def test_a_key_for_some_models_sees_and_uses_those(launch: Launch) -> None:
    one, ones = api_key("one", models=["scripted"])
    none, nones = api_key("none", models=["other"])
    async with launch(settings=auth(ones, nones)) as stack:
        assert (await ask(stack, one)).status_code == 200
        refused = await ask(stack, none)
        unknown = await ask(stack, one, model="other")
        assert refused.status_code == unknown.status_code == 404
        assert (
            refused.json()["error"]["message"].replace("scripted", "other")
            == unknown.json()["error"]["message"]
        )
        body = {name: value for name, value in ASK.items() if name != "model"}
        assert (await stack.http.post(CHAT, json=body, headers=bearer(one))).status_code == 400
        for key, names in ((one, ["scripted"]), (none, [])):
            listed = (await stack.http.get("/v1/models", headers=bearer(key))).json()["data"]
            assert [card["id"] for card in listed] == names
            single = await stack.http.get("/v1/models/scripted", headers=bearer(key))
            assert single.status_code == (200 if names else 404)
        await stack.settled()


@pytest.mark.parametrize(
    ("path", "role", "asked"),
    [
        (CHAT, "render", "/v1/chat/completions/render"),
        (COUNT, "render", COUNT),
        (GENERATE, "decode", GENERATE),
    ],
)
async def test_who_does_not_serve_a_model_does_not_tell_what_it_serves(
    launch: Launch, path: str, role: str, asked: str
) -> None:
    """Render tiers and engines list their models to who asks for another one."""
    one, ones = api_key("one", models=["gone"])
    message = {
        "message": "The model `gone` does not exist. Valid aliases: scripted.",
        "type": "NotFoundError",
    }
    refusal = json.dumps({"error": message | {"param": "model", "code": 404}}).encode()
    async with launch(settings=auth(ones)) as stack:
        member = stack.render if role == "render" else stack.decode[0]
        member.faults[asked].append(Status(404, refusal))
        tokens = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}}
        answer = await ask(stack, one, path, model="gone", **(tokens if path == GENERATE else {}))
        assert not member.faults[asked]
        assert answer.status_code == 404
        assert "gone" in answer.text
        assert "scripted" not in answer.text
        await stack.settled()


@pytest.mark.parametrize("model", [["scripted"], {"scripted": 1}, 5, True])
async def test_a_model_that_is_no_name_is_refused(launch: Launch, model: Any) -> None:
    one, ones = api_key("one", models=["scripted"])
    async with launch(settings=auth(ones)) as stack:
        refused = await ask(stack, one, model=model)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "model"
        await stack.settled()


@pytest.mark.parametrize("before", ["", '"x": 1e999, ', '"x": [{"model": "other"}], '])
@pytest.mark.parametrize("second", ['"model"', '"mod\\u0065l"', '"\\u006dodel"', '"Model"', '"model "'])
def test_the_model_that_is_checked_is_the_one_that_is_used(second: str, before: str) -> None:
    """Of a name that is in a body twice, both services read the last."""
    access = Access(Grant("one", "one", frozenset({"scripted"})), Tenancy(b"secret"))
    let_in = []
    for names in (("scripted", "other"), ("other", "scripted")):
        body = f'{{{before}"model": "{names[0]}", {second}: "{names[1]}", "messages": []}}'.encode()
        with contextlib.suppress(NotFound):
            read_request("chat", {"content-type": "application/json"}, body, access=access)
            let_in.append(decode_object(body)["model"])
    assert let_in == ["scripted"]


async def test_a_keys_output_limit_holds_whether_or_not_the_client_names_one(launch: Launch) -> None:
    short, shorts = api_key("short", max_tokens=2)
    async with launch(settings=auth(shorts)) as stack:
        refused = await ask(stack, short)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
        assert not stack.render.requests
        assert (await ask(stack, short, max_tokens=None)).json()["choices"][0]["finish_reason"] == "length"
        assert stack.decode[0].requests[GENERATE][0]["sampling_params"]["max_tokens"] == 2
        await stack.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_tenants_have_caches_of_their_own(launch: Launch, stream: bool) -> None:
    reds, red = api_key("another red", tenant="red")
    async with launch(settings=auth(ALICES, BOBS, red)) as stack:
        for key, own in ((ALICE, None), (reds, None), (BOB, None), (ALICE, "mine"), (BOB, "mine")):
            assert (await ask(stack, key, cache_salt=own, stream=stream)).status_code == 200
        seen = salts(stack)
        assert seen[0] == seen[1]
        assert len(set(seen)) == 4
        assert not {None, "mine"} & set(seen)
        # What another tenant's salt is, is of no use as one's own.
        assert (await ask(stack, BOB, cache_salt=seen[0])).status_code == 200
        assert salts(stack)[-1] not in seen
        assert salts(stack) == [r["cache_salt"] for r in stack.prefill[0].requests[GENERATE]]
        await stack.settled()


async def test_what_one_tenant_has_cached_attracts_no_request_of_another(launch: Launch) -> None:
    explain, explains = api_key("explain", explain=True)
    settings = auth(explains, BOBS | {"explain": True})
    async with launch(prefill=2, settings=settings) as stack:

        async def cached(key: str) -> list[int]:
            body = {"messages": [{"role": "user", "content": WORDS}]}
            answer = await ask(stack, key, headers={"x-pd-explain": "1"}, **body)
            made = json.loads(answer.headers["x-pd-decisions"])
            [prefill] = [decision for decision in made if decision["role"] == "prefill"]
            return sorted(candidate["cached_blocks"] for candidate in prefill["candidates"])

        assert await cached(explain) == [0, 0]
        assert await cached(explain) == [0, 4]
        assert await cached(BOB) == [0, 0]
        await stack.settled()


async def test_a_session_of_one_tenant_is_not_that_of_another(launch: Launch) -> None:
    settings = auth(ALICES, BOBS) | {"selection": {"decode": "session_affinity"}}
    async with launch(decode=8, settings=settings) as stack:
        sessions = set()
        for key in (ALICE, ALICE, BOB):
            await ask(stack, key, headers={"x-session-id": "same"})
            sessions |= {h["x-session-id"] for t in stack.decode for h in t.headers[GENERATE]}
        assert len(sessions) == 2
        assert "same" not in sessions


async def test_names_of_images_are_those_of_a_tenant(launch: Launch) -> None:
    """The render tier, which keeps images under them, is told whose names they are; engines are not."""
    reds, red = api_key("another red", tenant="red")
    async with launch(settings=auth(ALICES, BOBS, red)) as stack:
        for key in (ALICE, reds, BOB):
            for path in (CHAT, COUNT):
                await ask(stack, key, path, headers={"x-media-scope": "another's"})
        for path in (f"{CHAT}/render", COUNT):
            headers = stack.render.headers[path]
            alices, reds_too, bobs = [each["x-media-scope"] for each in headers]
            assert alices == reds_too != bobs
            assert len(alices) == 64
        for tier in (*stack.prefill, *stack.decode):
            assert not any("x-media-scope" in headers for headers in tier.headers[GENERATE])
        await stack.settled()


async def test_no_header_makes_a_client_another_tenant(launch: Launch) -> None:
    settings = auth(ALICES, BOBS) | {"admission": {"requests": 1, "queue_per_tenant": 1}}
    async with launch(settings=settings) as stack:
        stack.render.hold.clear()
        asks = [asyncio.create_task(ask(stack, ALICE))]
        await until(lambda: bool(stack.render.requests))
        asks.append(asyncio.create_task(ask(stack, ALICE, headers={"x-tenant-id": "a"})))
        await until(lambda: stack.services.admission.gates["requests"].waiting == 1)
        assert (await ask(stack, ALICE, headers={"x-tenant-id": "b"})).status_code == 429
        asks.append(asyncio.create_task(ask(stack, BOB, headers={"x-tenant-id": "red"})))
        await until(lambda: stack.services.admission.gates["requests"].waiting == 2)
        stack.render.hold.set()
        assert {(await answer).status_code for answer in asks} == {200}
        await stack.settled()


async def test_members_are_shown_to_who_may_see_them(launch: Launch) -> None:
    explain, explains = api_key("explain", explain=True)
    async with launch(settings=auth(ALICES, explains)) as stack:
        for key, shown in ((ALICE, False), (explain, True)):
            answer = await ask(stack, key, headers={"x-pd-explain": "1"})
            assert ("x-pd-decisions" in answer.headers) is shown
        assert "members" not in (await stack.http.get("/ready")).json()
        assert "members" in (await stack.http.get("/ready", headers=bearer(ADMIN))).json()
    async with launch() as stack:
        for headers, shown in (({}, True), ({"x-forwarded-for": "10.0.0.1"}, False)):
            answer = await stack.http.post(CHAT, json=ASK, headers=headers | {"x-pd-explain": "1"})
            assert ("x-pd-decisions" in answer.headers) is shown
            assert ("members" in (await stack.http.get("/ready", headers=headers)).json()) is shown


async def test_no_key_hash_or_secret_is_ever_logged(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as lines:
        async with launch(
            settings=auth(ALICES, BOBS) | {"members": {"engine_api_key": "engines' own"}}
        ) as stack:
            for key in (ALICE, BOB, STRANGER, "pd-no-key"):
                await ask(stack, key)
                await ask(stack, key, messages=[])
                await stack.http.post(CHAT, content=b"{", headers=bearer(key))
            await stack.http.get("/status", headers=bearer(ADMIN))
            await stack.settled()
    text = repr(lines) + caplog.text
    assert "'key': 'alice'" in text
    hashes = [entry["hash"].rpartition("$")[2] for entry in (ALICES, BOBS)]
    for secret in (ALICE, BOB, STRANGER, "pd-no-key", ADMIN, "engines' own", "0123456789abcdef", *hashes):
        assert secret not in text


async def test_keys_of_a_file_come_and_go_without_a_restart(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": []}))
    async with launch(settings=auth(file=str(path), file_interval=0.01)) as stack:

        async def answers(key: str, status: int) -> None:
            while (await ask(stack, key)).status_code != status:
                await asyncio.sleep(0.01)

        await answers(ALICE, 401)
        path.write_text(json.dumps({"keys": [ALICES]}))
        await answers(ALICE, 200)
        with structlog.testing.capture_logs() as lines:
            path.write_text(json.dumps({"keys": [{"name": "broken", "hash": ALICE}]}))
            await until(lambda: any("not read again" in line["event"] for line in lines))
        assert ALICE not in repr(lines)
        assert (await ask(stack, ALICE)).status_code == 200
        path.write_text(json.dumps({"keys": [BOBS]}))
        await answers(BOB, 200)
        await answers(ALICE, 401)


async def test_workers_agree_on_a_salt_that_nobody_has_set(tmp_path: Path) -> None:
    async with serving(Tier("r")) as render, serving(Tier("d")) as decode:
        config = tmp_path / "c.json"
        members = {"render": [render.url], "decode": [decode.url]}
        config.write_text(json.dumps({"members": members, "auth": {"keys": [ALICES]}}))
        server = orchestrator_server("--config", config, "--workers", "2", log_dir=tmp_path)
        await asyncio.to_thread(server.start)
        try:
            served = set()
            while len(served) < 2:  # a new connection each time: the kernel picks the worker
                async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as client:
                    assert (await client.post(CHAT, json=ASK)).status_code == 401
                    assert (await client.post(CHAT, json=ASK, headers=bearer(ALICE))).status_code == 200
                    served = set(
                        re.findall(r'pd_tokens_total{.*worker="(\d+)"}', (await client.get("/metrics")).text)
                    )
        finally:
            await asyncio.to_thread(server.stop)
        [salt] = {request["cache_salt"] for request in decode.requests[GENERATE]}
        assert re.fullmatch("[0-9a-f]{64}", salt)


def test_the_command_prints_a_line_that_opens_with_its_key() -> None:
    made = CliRunner().invoke(app, ["key", 'the "first"', "--tenant", "red"])
    assert made.exit_code == 0, made.output
    shown = made.stderr.splitlines()[-1]
    assert shown not in made.stdout
    file = KeyFile.model_validate(
        parsed_config(Path("keys.toml"), made.stdout.replace('the \\"first\\"', "first"))
    )
    ring: Keyring = keyring_of(file.keys)
    grant = ring.find(shown.encode())
    assert grant is not None
    assert (grant.name, grant.tenant) == ("first", "red")


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({"keys": [ALICES | {"hash": ALICE}]}, "pd-orchestrator key"),
        ({"keys": [ALICES, BOBS | {"name": "alice"}]}, "two keys"),
        ({"keys": [ALICES | {"requests_per_minute": 0}]}, "requests_per_minute"),
        ({"keys": [ALICES | {"nope": 1}]}, "no such setting"),
        ({"cache_salt_secret": "short"}, "cache_salt_secret"),
        ({"file": "/nowhere/keys.toml"}, "/nowhere/keys.toml"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_at_the_start_without_being_repeated(
    tmp_path: Path, written: dict[str, Any], complaint: str
) -> None:
    config = tmp_path / "c.json"
    config.write_text(
        json.dumps({"auth": written, "members": {"render": ["http://r"], "decode": ["http://d"]}})
    )
    result = CliRunner().invoke(app, ["serve", "--config", str(config)])
    assert result.exit_code == 2
    assert complaint in result.output
    assert ALICE not in result.output


def test_hashes_and_secrets_are_not_among_the_settings_that_are_shown(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    values = auth(ALICES) | {"members": {"render": ["http://r"], "decode": ["http://d"]}}
    config.write_text(json.dumps(values))
    shown = json.dumps(load_settings(config, {}).redacted())
    assert "alice" in shown
    for secret in (ALICES["hash"], ADMIN, "0123456789abcdef"):
        assert secret not in shown
