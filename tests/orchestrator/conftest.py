"""The orchestrator in the test's own event loop, behind a real uvicorn, in front of scripted tiers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from orchestrator.server.app import create_app
from orchestrator.server.services import Services
from orchestrator.server.serving import OrchestratorServer, uvicorn_config
from orchestrator.settings import Settings, merged
from tests.orchestrator.faults import Tier, serving
from tests.support.redis_server import RedisServer, redis_program, redis_server

QUICK: dict[str, Any] = {
    # Faults are scripted, so nothing in these tests has to wait for a real timeout of seconds.
    "server": {"grace": 2.0, "port": 0},
    "timeouts": {"abort": 1.0, "cleanup": 1.0, "connect": 1.0},
    "health": {"interval": 30.0},
}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens by itself; a test's own timeout is the bound."""
    while not condition():
        await asyncio.sleep(0.005)


@dataclass
class Stack:
    url: str
    services: Services
    renders: list[Tier]
    prefill: list[Tier]
    decode: list[Tier]
    encode: list[Tier]
    client: openai.AsyncOpenAI
    http: httpx.AsyncClient
    server: uvicorn.Server = field(repr=False)

    @property
    def render(self) -> Tier:
        return self.renders[0]

    @property
    def tiers(self) -> list[Tier]:
        return [*self.renders, *self.prefill, *self.decode, *self.encode]

    async def settled(self, crashes: int = 0) -> None:
        """Wait until the orchestrator is idle; fails with what is left when it does not become so, and for
        other tasks that crashed than the ``crashes`` that the test makes."""
        integrity = self.services.integrity
        for _ in range(400):
            if integrity.idle:
                break
            await asyncio.sleep(0.01)
        assert repr(integrity) == "<Integrity idle>", (
            integrity,
            self.services.exchanges,
            self.services.supervisor,
        )
        assert self.services.supervisor.crashes == crashes, "see `task crashed` in the log"
        assert not any(member.active for pool in self.services.pools for member in pool.members)
        assert not any(gate.active or gate.waiting for gate in self.services.admission.gates.values())
        assert not [violation for tier in self.tiers for violation in tier.violations]


Launch = Callable[..., Any]


@asynccontextmanager
async def launched(
    *,
    render: int = 1,
    prefill: int = 1,
    decode: int = 1,
    encode: int = 0,
    pace: float = 0.0,
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[Stack]:
    """``prefill=0`` is colocated mode."""
    async with AsyncExitStack() as exits:
        renders = [await exits.enter_async_context(serving(Tier(f"r{i}"))) for i in range(render)]
        prefills = [await exits.enter_async_context(serving(Tier(f"p{i}"))) for i in range(prefill)]
        decodes = [await exits.enter_async_context(serving(Tier(f"d{i}", pace))) for i in range(decode)]
        encodes = [await exits.enter_async_context(serving(Tier(f"e{i}"))) for i in range(encode)]
        for tier in encodes:
            tier.encodes = True
        members = {
            "render": [tier.url for tier in renders],
            "prefill": [tier.url for tier in prefills],
            "decode": [tier.url for tier in decodes],
            "encode": [tier.url for tier in encodes],
        }
        config = Settings.model_validate(merged(merged(QUICK, settings or {}), {"members": members}))
        server, services, port = await exits.enter_async_context(running(config))
        url = f"http://127.0.0.1:{port}"
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)
        http = httpx.AsyncClient(base_url=url, timeout=30)
        try:
            yield Stack(url, services, renders, prefills, decodes, encodes, client, http, server)
        finally:
            await client.close()
            await http.aclose()


@asynccontextmanager
async def running(config: Settings) -> AsyncIterator[tuple[OrchestratorServer, Services, int]]:
    """The server with these settings, what its requests share, and the port it listens on."""
    app = await asyncio.to_thread(create_app, config)  # reads files, as it may before there is a loop
    options = uvicorn_config(app, config.server)
    # The test's own loop, and the log as pytest captures it.
    options.loop, options.log_config = "none", None
    server = OrchestratorServer(options, app, config.server.grace)
    serve = asyncio.create_task(server.serve())
    while not server.started:
        assert not serve.done(), serve.result()
        await asyncio.sleep(0.005)
    services: Services = app.state.services
    await services.check_health()
    try:
        yield server, services, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serve


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    program = redis_program()
    if program is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    with redis_server(program, tmp_path_factory.mktemp("r")) as server:
        yield server


@pytest.fixture
def launch() -> Launch:
    return launched
