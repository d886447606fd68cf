"""The render tier's application in the test's own process, around models that are loaded once per run."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from render_tier.server.app import RenderApp, create_app
from render_tier.server.service import Service
from render_tier.settings import Settings

QWEN3: dict[str, Any] = {
    "served_model_name": ("qwen3",),
    "max_model_len": 40960,
    "reasoning_parser": "qwen3",
    "tool_call_parser": "hermes",
    "enable_auto_tool_choice": True,
    "override_generation_config": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
}
"""As the recorded server was started."""


def settings_for(directory: Path, **values: Any) -> Settings:
    return Settings(model=str(directory), **values)


_services: dict[str, Service] = {}


def load_service(settings: Settings) -> Service:
    """One per settings, for the whole run."""
    return _load(settings.model_dump_json())


@cache
def _load(settings_json: str) -> Service:
    return Service.load(Settings.model_validate_json(settings_json))


async def app_client(settings: Settings, loaded: Service) -> tuple[RenderApp, httpx.AsyncClient]:
    """A ready application with ``settings`` over the model of ``loaded``, and a client that speaks to it."""
    app = create_app(settings, preloaded=Service(settings, loaded.assets))
    await app.runtime.start()
    while app.runtime.service is None:
        assert app.runtime.failure is None, app.runtime.failure
        await asyncio.sleep(0)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return app, httpx.AsyncClient(transport=transport, base_url="http://render-tier")


async def idle(app: RenderApp) -> None:
    """Stop the application; nothing may be in progress any more."""
    assert app.runtime.in_flight == 0
    assert app.runtime.pending == 0
    await app.runtime.stop()
