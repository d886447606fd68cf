"""The render tier's application in the test's own process, around models that are loaded once per run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from render_tier.model import ModelAssets
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

_services: dict[str, Service] = {}


def settings_for(directory: Path, **values: Any) -> Settings:
    """Without the fast engine unless asked for: it takes longer to load than most tests run."""
    return Settings(model=str(directory), **{"tokenizer_engine": "tokenizers", **values})


def load_service(settings: Settings, assets: ModelAssets | None = None) -> Service:
    """One for each settings in the whole run, around ``assets`` when they are loaded already."""
    key = settings.digest()
    if key not in _services:
        _services[key] = Service.load(settings) if assets is None else Service(settings, assets)
    return _services[key]


async def app_client(settings: Settings, service: Service) -> tuple[RenderApp, httpx.AsyncClient]:
    """A ready application and a client that speaks to it."""
    app = create_app(settings, preloaded=service)
    await app.runtime.start()
    assert app.runtime.service is not None, app.runtime.failure
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return app, httpx.AsyncClient(transport=transport, base_url="http://render-tier")


async def idle(app: RenderApp) -> None:
    """Stop the application; nothing may be in progress any more."""
    assert app.runtime.in_flight == 0
    assert app.runtime.pending == 0
    await app.runtime.stop()
