"""A process serves with the reference encoder first and adopts the fast one, or says why it does not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from render_tier.model.engines import FastEngine
from render_tier.server.app import RenderApp
from render_tier.server.service import Service
from tests.support.render_app import app_client, idle, settings_for

TEXT = {"prompt": "Hello <|im_end|> world, naïve 👩‍👩‍👧 text", "max_tokens": 4}
RENDER = "/v1/completions/render"


async def _adopted(app: RenderApp, client: httpx.AsyncClient) -> str:
    """The metrics once the process has decided on its engine."""
    while True:
        metrics = (await client.get("/metrics")).text
        if 'render_tier_tokenizer_engine{engine="' in metrics:
            return metrics
        await asyncio.sleep(0.01)


async def test_the_fast_engine_takes_over_and_changes_no_answer(smollm2_dir: Path) -> None:
    settings = settings_for(smollm2_dir, tokenizer_engine="auto")
    service = await asyncio.to_thread(Service.load, settings)
    before = service.renderer.engine.ids(TEXT["prompt"], add_special_tokens=False)
    app, client = await app_client(settings, service)
    async with client:
        metrics = await _adopted(app, client)
        assert 'render_tier_tokenizer_engine{engine="fastokens"} 1.0' in metrics
        assert service.renderer.engine.name == "fastokens"
        reply = await client.post(RENDER, json=TEXT)
        assert reply.json()[0]["token_ids"] == before
        await client.post(RENDER, json=TEXT)
        metrics = (await client.get("/metrics")).text
        assert 'render_tier_prompt_cache_chars_total{result="hit"}' in metrics
        assert service.renderer.prompt_cache is not None
        assert f"render_tier_prompt_cache_bytes {float(service.renderer.prompt_cache.size)}" in metrics
    await idle(app)


async def test_without_the_package_the_reference_serves_on(
    smollm2_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    settings = settings_for(smollm2_dir, tokenizer_engine="auto")
    app, client = await app_client(settings, await asyncio.to_thread(Service.load, settings))
    async with client:
        metrics = await _adopted(app, client)
        assert 'render_tier_tokenizer_engine{engine="tokenizers"} 1.0' in metrics
        assert 'render_tier_tokenizer_fallbacks_total{reason="unavailable"} 1.0' in metrics
        assert (await client.post(RENDER, json=TEXT)).status_code == 200
    await idle(app)


async def test_an_engine_that_gives_other_ids_is_not_used(
    smollm2_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe finds an encoder that takes one special token for text."""
    right = FastEngine.ids

    def wrong(self: FastEngine, text: str, *, add_special_tokens: bool) -> list[int]:
        return right(self, text.replace("<|im_end|>", "<|im_end| >"), add_special_tokens=add_special_tokens)

    monkeypatch.setattr(FastEngine, "ids", wrong)
    settings = settings_for(smollm2_dir, tokenizer_engine="auto")
    service = await asyncio.to_thread(Service.load, settings)
    expected = service.renderer.engine.ids(TEXT["prompt"], add_special_tokens=False)
    app, client = await app_client(settings, service)
    async with client:
        metrics = await _adopted(app, client)
        assert 'render_tier_tokenizer_fallbacks_total{reason="parity"} 1.0' in metrics
        assert service.renderer.engine.name == "tokenizers"
        assert (await client.post(RENDER, json=TEXT)).json()[0]["token_ids"] == expected
    await idle(app)
