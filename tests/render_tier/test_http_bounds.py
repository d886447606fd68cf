"""What a connection is bounded in beyond the head of a request (`server/test_raw_http.py` has that)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from render_tier.http_bounds import bounded_http

LARGE = bytes(64 << 20)
"""More than a system keeps for a connection."""


class Application:
    """Answers with something large, in two pieces."""

    def __init__(self) -> None:
        self.sent = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, False):
            await send({"type": "http.response.body", "body": LARGE, "more_body": more})
        self.sent.set()


@asynccontextmanager
async def served(application: Application, read_seconds: float) -> AsyncIterator[int]:
    config = uvicorn.Config(
        application,
        host="127.0.0.1",
        port=0,
        lifespan="off",
        log_config=None,
        http=bounded_http(65536, 20.0, read_seconds),
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def asking(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    return reader, writer


async def test_who_does_not_read_an_answer_is_cut_off() -> None:
    application = Application()
    async with served(application, read_seconds=0.2) as port:
        reader, writer = await asking(port)
        await asyncio.wait_for(application.sent.wait(), 30)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(2 * len(LARGE))
        writer.close()


async def test_who_reads_it_gets_all_of_it() -> None:
    application = Application()
    async with served(application, read_seconds=30) as port:
        reader, writer = await asking(port)
        assert len(await reader.read()) > 2 * len(LARGE)
        assert application.sent.is_set()
        writer.close()
