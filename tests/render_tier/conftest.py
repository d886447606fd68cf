"""Loaded models, shared by the whole run, and applications around them that must be idle after a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from render_tier.model import ModelAssets
from render_tier.rendering.renderer import Renderer
from render_tier.rendering.settings import RenderSettings
from render_tier.server.app import RenderApp
from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.support.render_app import QWEN3, app_client, idle, load_service, settings_for

Serve = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture(scope="session", autouse=True)
def quiet_logs() -> None:
    """Log lines are made, as in a server, but not written; the console's tracebacks read files to do so."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        logger_factory=structlog.ReturnLoggerFactory(),
    )


@pytest.fixture(scope="session")
def qwen3_settings(qwen3_dir: Path) -> Settings:
    return settings_for(qwen3_dir, **QWEN3)


@pytest.fixture(scope="session")
def qwen3_assets(qwen3_settings: Settings) -> ModelAssets:
    return load_service(qwen3_settings).assets


@pytest.fixture(scope="session")
def smollm2_settings(smollm2_dir: Path) -> Settings:
    return settings_for(smollm2_dir, served_model_name=("smollm2",))


@pytest.fixture(scope="session")
def smollm2_assets(smollm2_settings: Settings) -> ModelAssets:
    return load_service(smollm2_settings).assets


@pytest.fixture
def qwen3_renderer(qwen3_assets: ModelAssets) -> Renderer:
    """With the qwen3 reasoning and hermes tool parsers."""
    return Renderer(qwen3_assets, QWEN3_RENDER)


QWEN3_RENDER = RenderSettings(
    reasoning_parser="qwen3", tool_call_parser="hermes", enable_auto_tool_choice=True
)


@pytest.fixture(scope="session")
def qwen3_service(qwen3_settings: Settings) -> Service:
    return load_service(qwen3_settings)


@pytest.fixture
async def serve(qwen3_settings: Settings, qwen3_service: Service) -> AsyncIterator[Serve]:
    """``await serve(**settings)``: a client of an application around Qwen3 with these settings changed."""
    opened: list[tuple[RenderApp, httpx.AsyncClient]] = []

    async def start(**changes: Any) -> httpx.AsyncClient:
        settings = qwen3_settings.model_copy(update=changes)
        app, client = await app_client(settings, load_service(settings, qwen3_service.assets))
        opened.append((app, client))
        return client

    yield start
    for app, client in opened:
        await client.aclose()
        await idle(app)


@pytest.fixture
async def client(serve: Serve) -> httpx.AsyncClient:
    """An application around Qwen3 with reasoning and tool parsers."""
    return await serve()
