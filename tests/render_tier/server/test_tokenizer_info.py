"""``/tokenizer_info`` is behind its flag, and says what vLLM's says (recorded from vLLM 0.32)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from render_tier.model import ModelAssets
from render_tier.server.tokenizer_info import tokenizer_info
from tests.render_tier.conftest import Serve

RECORDED = json.loads(
    (Path(__file__).parents[2] / "conformance" / "data" / "tokenizer_info.json").read_text(encoding="utf-8")
)
OF_ITS_LOADER = {"local_files_only"}
WRAPPER = "Cached"
"""vLLM names the class that wraps the tokenizer's own."""


async def test_it_is_not_there_without_the_flag(client: httpx.AsyncClient) -> None:
    assert (await client.get("/tokenizer_info")).status_code == 404


async def test_it_is_there_with_the_flag(serve: Serve, qwen3_assets: ModelAssets) -> None:
    client = await serve(enable_tokenizer_info_endpoint=True)
    reply = await client.get("/tokenizer_info")
    assert reply.status_code == 200
    assert reply.json() == tokenizer_info(qwen3_assets)


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_it_equals_vllms(name: str, request: pytest.FixtureRequest) -> None:
    assets: ModelAssets = request.getfixturevalue(f"{name}_assets")
    expected: dict[str, Any] = {
        key: value for key, value in RECORDED[name].items() if key not in OF_ITS_LOADER
    }
    expected["tokenizer_class"] = expected["tokenizer_class"].removeprefix(WRAPPER)
    assert tokenizer_info(assets) | {"name_or_path": "MODEL"} == expected
