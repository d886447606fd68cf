"""Images that engines process themselves: what they are sent has the size and the pixels that the model is
shown, at the places that a mask says to engines that read one."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from PIL import Image
from structlog.testing import capture_logs

from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.support.image_corpus import PATH, chat, part, text
from tests.support.images import file, picture
from tests.support.render_app import app_client, idle, settings_for
from tests.support.tiled_models import lay_out

Mistral3 = Callable[..., Awaitable[tuple[Settings, Service]]]


@pytest.fixture
def mistral3(tmp_path: Path, qwen3_dir: Path) -> Mistral3:
    directory = lay_out("mistral3", qwen3_dir.parent, tmp_path / "m")

    async def served(**options: Any) -> tuple[Settings, Service]:
        settings = settings_for(directory, **options)
        return settings, await asyncio.to_thread(Service.load, settings)

    return served


async def answered(
    settings: Settings, service: Service, *, path: str = PATH, **options: Any
) -> httpx.Response:
    app, client = await app_client(settings, service)
    try:
        messages = chat(text("See"), part(file(picture(640, 480))), text("Well?"))
        return await client.post(path, json=messages | options)
    finally:
        await client.aclose()
        await idle(app)


async def test_images_in_runs_can_be_refused(mistral3: Mistral3) -> None:
    with capture_logs() as logs:
        served = await mistral3(mm_images_in_runs="refused")
    (refused,) = (entry for entry in logs if entry["event"] == "images_refused")
    response = await answered(*served)
    assert response.status_code == 400
    for said in (refused["reason"], response.json()["error"]["message"]):
        assert "--mm-images-in-runs" in said


async def test_engines_that_read_no_mask_are_given_pictures(mistral3: Mistral3) -> None:
    masked = (await answered(*await mistral3(mm_images_in_runs="masks"))).raise_for_status().json()
    served = await mistral3()
    shown = (await answered(*served)).raise_for_status().json()
    assert shown["features"] is None
    ((picture,), (place,)) = shown["content_parts"], shown["content_places"]
    assert masked["content_parts"] is None
    assert "content_places" not in masked
    ids, (where,) = masked["token_ids"], masked["features"]["mm_placeholders"]["image"]
    first, end = where["offset"], where["offset"] + where["length"]
    assert shown["token_ids"] == [*ids[: first + 1], *ids[end:]]
    assert place == {"offset": first, "length": 1, "token_ids": ids[first:end]}
    assert shown["sampling_params"] == masked["sampling_params"], "what is left of the context, too"
    assert (picture["type"], [picture["uuid"]]) == ("image_url", masked["features"]["mm_hashes"]["image"])
    kind, data = picture["url"].split(",")
    assert kind == "data:image/x-portable-pixmap;base64"
    pixels = np.asarray(Image.open(BytesIO(b64decode(data)))).transpose(2, 0, 1)
    (item,) = masked["features"]["kwargs_data"]["image"]
    _, shape, raw = msgspec.msgpack.decode(b64decode(item))["pixel_values"]["data"]
    assert (list(pixels.shape), pixels.tobytes()) == (shape, bytes(raw.data))
    named = (await answered(*served, mm_payload="none")).raise_for_status().json()
    assert named["content_parts"] == [picture | {"url": None}]


async def test_the_whole_prompt_is_explained(mistral3: Mistral3) -> None:
    served = await mistral3()
    answer = await answered(*served, path=f"{PATH}?explain=true")
    explained = answer.raise_for_status().json()
    (place,) = explained["request"]["content_places"]
    whole = len(explained["request"]["token_ids"]) - 1 + len(place["token_ids"])
    assert (explained["prompt_tokens"], len(explained["tokens"])) == (whole, whole)


async def test_a_size_that_engines_would_not_leave_is_refused(mistral3: Mistral3) -> None:
    """They are told nothing of a request's options."""

    def size(side: int) -> Any:
        return {"size": {"longest_edge": side}}

    served = await mistral3(trust_request_mm_kwargs=True, mm_processor_kwargs=size(200))
    smaller = await answered(*served, mm_processor_kwargs=size(100))
    (place,) = smaller.raise_for_status().json()["content_places"]
    assert len(place["token_ids"]) == 15
    larger = await answered(*served, mm_processor_kwargs=size(300))
    assert larger.status_code == 400
    assert "another size" in larger.json()["error"]["message"]
