"""TLS on both sides of the orchestrator, with certificates made here: whom it serves, whom it trusts, and
what it shows of itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.settings import Settings, merged
from tests.orchestrator.conftest import QUICK, Launch, Stack, running
from tests.orchestrator.faults import CHAT
from tests.support.certificates import Authority, Pair
from tests.support.processes import ServerProcess, orchestrator_server

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 3, "stream": True}


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def files(pair: Pair) -> dict[str, str]:
    return {"certificate": str(pair.certificate), "key": str(pair.key)}


async def ask(url: str, context: ssl.SSLContext) -> httpx.Response:
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=30) as client:
        return await client.post(url + CHAT, json=ASK)


@asynccontextmanager
async def behind_tls(url: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """The server at ``url`` once more, where TLS is spoken."""
    inside = urlsplit(url)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(inside.hostname, inside.port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def before_tls(stack: Stack, context: ssl.SSLContext, tls: dict[str, str]) -> AsyncIterator[Any]:
    """An orchestrator whose members are those of ``stack``, behind TLS."""
    async with contextlib.AsyncExitStack() as exits:
        roles = {"render": stack.renders, "prefill": stack.prefill, "decode": stack.decode}
        members: dict[str, Any] = {
            role: [await exits.enter_async_context(behind_tls(tier.url, context)) for tier in tiers]
            for role, tiers in roles.items()
        }
        config = Settings.model_validate(merged(QUICK, {"members": members | {"tls": tls}}))
        _server, _services, port = await exits.enter_async_context(running(config))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client


async def test_clients_are_served_over_tls_alone(launch: Launch, ca: Authority) -> None:
    pair = ca.pair("127.0.0.1")
    async with launch(settings={"server": {"tls": files(pair)}}) as stack:
        url = stack.url.replace("http:", "https:")
        answer = await ask(url, ca.client_context())
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.ConnectError):
            await ask(url, ssl.create_default_context())
        with pytest.raises(httpx.TransportError):
            await ask(stack.url, ca.client_context())
        await stack.settled()


async def test_clients_must_show_a_certificate_where_an_authority_for_them_is_set(
    launch: Launch, ca: Authority, tmp_path: Path
) -> None:
    tls = files(ca.pair("127.0.0.1")) | {"client_ca": str(ca.file)}
    others = Authority(tmp_path, "theirs")
    async with launch(settings={"server": {"tls": tls}}) as stack:
        url = stack.url.replace("http:", "https:")
        assert (await ask(url, ca.client_context(ca.pair("client")))).status_code == 200
        for context in (ca.client_context(), ca.client_context(others.pair("client"))):
            with pytest.raises(httpx.TransportError):
                await ask(url, context)
        await stack.settled()


async def test_every_hop_goes_over_tls_with_our_own_certificate(launch: Launch, ca: Authority) -> None:
    context = ca.server_context(ca.pair("127.0.0.1"), asks=True)
    tls = {"ca": str(ca.file)} | files(ca.pair("orchestrator"))
    async with launch() as stack, before_tls(stack, context, tls) as client:
        assert (await client.get("/ready")).status_code == 200
        answer = await client.post(CHAT, json=ASK)
        assert answer.text.endswith("data: [DONE]\n\n")
        assert (await client.post(CHAT, json=ASK | {"stream": False})).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200
        await stack.settled()


@pytest.mark.parametrize("wrong", ["authority", "name", "no certificate", "another's certificate"])
async def test_members_that_are_not_who_they_should_be_get_no_request(
    launch: Launch, ca: Authority, tmp_path: Path, wrong: str
) -> None:
    others = Authority(tmp_path, "theirs")
    identity = "another.example" if wrong == "name" else "127.0.0.1"
    context = ca.server_context(ca.pair(identity), asks="certificate" in wrong)
    tls = {"ca": str(others.file if wrong == "authority" else ca.file)}
    if wrong == "another's certificate":
        tls |= files(others.pair("orchestrator"))
    async with launch() as stack, before_tls(stack, context, tls) as client:
        assert (await client.get("/ready")).status_code == 503
        answer = await client.post(CHAT, json=ASK)
        assert answer.status_code == 503
        assert "127.0.0.1" not in answer.text
        assert not any(tier.requests for tier in stack.tiers)


def answers_over_tls(server: ServerProcess, context: ssl.SSLContext) -> bool:
    """Within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end and server.running:
        with (
            httpx.Client(verify=context, trust_env=False) as client,
            contextlib.suppress(httpx.TransportError),
        ):
            return client.get(f"https://127.0.0.1:{server.port}/health").status_code == 200
        time.sleep(0.05)
    return False


def test_workers_serve_over_tls(ca: Authority, tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    successor = Authority(tmp_path, "successor")
    used, renewed = ca.pair("127.0.0.1"), successor.pair("127.0.0.1")
    nobody = ["http://127.0.0.1:9"]
    values = {"server": {"tls": files(used), "workers": 2}, "members": {"render": nobody, "decode": nobody}}
    config.write_text(json.dumps(values))
    server = orchestrator_server("--config", config, log_dir=tmp_path)
    server._spawn(None)  # it is awaited here: over TLS
    try:
        assert answers_over_tls(server, ca.client_context()), server.log()
        used.certificate.write_bytes(renewed.certificate.read_bytes())
        used.key.write_bytes(renewed.key.read_bytes())
        os.kill(server.pid, signal.SIGHUP)
        assert answers_over_tls(server, successor.client_context()), server.log()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"server": {"tls": {"certificate": "/nowhere", "key": "/nowhere"}}},
            "server.tls: /nowhere: No such file",
        ),
        ({"server": {"tls": {"certificate": "/nowhere"}}}, "go together"),
        ({"server": {"tls": {"client_ca": "/nowhere"}}}, "client_ca needs"),
        ({"members": {"tls": {"ca": "/nowhere"}}}, "members.tls: /nowhere: No such file"),
        ({"members": {"tls": {"key": "/nowhere"}}}, "go together"),
    ],
)
def test_certificates_that_cannot_be_used_are_refused_at_the_start(
    tmp_path: Path, values: dict[str, Any], complaint: str
) -> None:
    config = tmp_path / "c.json"
    members = {"members": {"render": ["http://r"], "decode": ["http://d"]}}
    config.write_text(json.dumps(merged(members, values)))
    result = CliRunner().invoke(app, ["serve", "--config", str(config)])
    assert result.exit_code == 2
    assert complaint in result.output
