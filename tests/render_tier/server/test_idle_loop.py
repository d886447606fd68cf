"""Renders of middling length: on the event loop while nobody would wait for them, else on a thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from render_tier.rendering.renderer import Renderer
from render_tier.server import idle_loop
from render_tier.server.idle_loop import MOST_MESSAGES
from render_tier.server.service import Service
from tests.support.render_app import QWEN3, load_service, settings_for
from tests.support.session_client import Tier, served

CHAT = "/v1/chat/completions/render"
MIDDLING = {"messages": [{"role": "user", "content": "Hi " * 2000}]}
LOOP, THREAD = "MainThread", "render_0"


class Places(list[str]):
    """Names of the threads that rendered, in turn."""


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    """With a renderer that counts as fast: the fast engine takes longer to load than most tests run."""
    found = Places()
    chat = Renderer.render_chat

    def noting(*args: Any, **options: Any) -> Any:
        found.append(threading.current_thread().name)
        return chat(*args, **options)

    monkeypatch.setattr(Renderer, "render_chat", noting)
    monkeypatch.setattr(Renderer, "is_fast", True)
    return found


async def render(client: httpx.AsyncClient, body: dict[str, Any] | None = None) -> None:
    assert (await client.post(CHAT, json=body or MIDDLING)).status_code == 200
    await asyncio.sleep(0)  # the next one does not come before the loop has looked for it


async def test_one_after_the_other_on_the_loop(client: httpx.AsyncClient, places: Places) -> None:
    for _ in range(3):
        await render(client)
    assert places == [LOOP] * 3


async def test_of_several_at_once_one_on_the_loop(client: httpx.AsyncClient, places: Places) -> None:
    await asyncio.gather(*(render(client) for _ in range(4)))
    assert sorted(places) == [LOOP, *[THREAD] * 3]
    await render(client)
    assert places[-1] == LOOP


async def test_on_a_thread_while_a_stream_goes_on(
    client: httpx.AsyncClient, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_loop, "STREAM_SECONDS", 1000.0)
    await client.post("/v1/chat/completions/derender", json={})
    await render(client)
    assert places == [THREAD]


async def test_on_the_loop_again_when_the_stream_is_over(
    client: httpx.AsyncClient, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_loop, "STREAM_SECONDS", 0.0)
    await client.post("/v1/chat/completions/derender", json={})
    await render(client)
    assert places == [LOOP]


async def test_on_a_thread_while_a_session_is_open(
    qwen3_dir: Path, qwen3_service: Service, places: Places
) -> None:
    async def ask(tier: Tier) -> None:
        async with aiohttp.ClientSession() as http, http.post(tier.url + CHAT, json=MIDDLING) as response:
            assert response.status == 200

    settings = settings_for(qwen3_dir, **QWEN3)
    async with served(settings, load_service(settings, qwen3_service.assets)) as tier:
        places.clear()  # of the warm-up
        async with tier.connect():
            await ask(tier)
        while len(tier.app.sessions):
            await asyncio.sleep(0.01)
        await ask(tier)
    assert places == [THREAD, LOOP]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "Hi " * 20_000}]},
        {"messages": [{"role": "user", "content": "Hi " * 30}] * (MOST_MESSAGES + 1)},
    ],
    ids=["long", "many messages"],
)
async def test_on_a_thread_what_takes_longer(
    client: httpx.AsyncClient, places: Places, body: dict[str, Any]
) -> None:
    await render(client, body)
    assert places == [THREAD]


async def test_on_a_thread_before_the_fast_engine_is_there(
    client: httpx.AsyncClient, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Renderer, "is_fast", False)
    await render(client)
    assert places == [THREAD]


def test_only_templates_with_the_fast_engine_alone_are_fast(qwen3_renderer: Renderer) -> None:
    assert qwen3_renderer.engine.name == "tokenizers"
    assert not qwen3_renderer.is_fast
