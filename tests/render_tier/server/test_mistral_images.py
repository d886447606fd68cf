"""Images of models with a tokenizer of Mistral's format: prompts are those of mistral-common, with its own
encoder of images; engines in that format are given them whole, others with one token for each image."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer as Library
from PIL import Image

from render_tier.model.mistral_tokenizer import MistralTokenizer
from render_tier.multimodal.processors.mistral_common import MistralCommonProcessor
from render_tier.server.service import Service
from tests.support import tiled_models
from tests.support.image_corpus import PATH, part, text
from tests.support.images import file, picture
from tests.support.mistral_models import MERGING, lay_out
from tests.support.render_app import app_client, idle, settings_for

ONE, OTHER, LARGE = (part(file(picture(*size))) for size in ((64, 48), (50, 190), (2100, 901)))
CHATS: dict[str, list[dict[str, Any]]] = {
    "image first": [{"role": "user", "content": [ONE, text("What is it?")]}],
    "image last": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text("What"), text("is it?"), ONE]},
    ],
    "images between texts": [
        {"role": "user", "content": [text("a [IMG] b"), LARGE, text("c"), OTHER, text("d")]},
    ],
    "a conversation": [
        {"role": "user", "content": [text("What is it?"), OTHER]},
        {"role": "assistant", "content": "A picture."},
        {"role": "user", "content": [ONE]},
        {"role": "user", "content": [text("And this?"), LARGE]},
    ],
    "text alone": [{"role": "user", "content": "Hello [IMG]"}],
}


@pytest.fixture(params=["v3", "v13, which merges patches"])
def model(request: pytest.FixtureRequest, model_dir: Callable[[str], Path], tmp_path: Path) -> Path:
    if request.param == "v3":
        return lay_out(model_dir("tekken_240911"), tmp_path / "m")
    return lay_out(model_dir("tekken_v13"), tmp_path / "m", **MERGING)


async def answers(
    directory: Path, bodies: list[dict[str, Any]], paths: Iterable[str] = repeat(PATH), **options: Any
) -> list[httpx.Response]:
    settings = settings_for(directory, served_model_name=("m",), **options)
    app, client = await app_client(settings, await asyncio.to_thread(Service.load, settings))
    try:
        return [await client.post(path, json=body) for path, body in zip(paths, bodies, strict=False)]
    finally:
        await client.aclose()
        await idle(app)


async def test_prompts_are_the_librarys(model: Path) -> None:
    library = Library.from_file(str(model / "tekken.json"))
    bodies = [{"messages": messages} for messages in CHATS.values()]
    for (name, messages), answer in zip(CHATS.items(), await answers(model, bodies), strict=True):
        given = answer.raise_for_status().json()
        expected = library.encode_chat_completion(ChatCompletionRequest.from_openai(messages)).tokens
        assert given["token_ids"] == expected, name
        places = given.get("content_places", [])
        for place in places:
            assert place["token_ids"] == expected[place["offset"] : place["offset"] + place["length"]], name
        shown = [part for message in messages for part in message["content"] if "image_url" in part]
        pictures = given["content_parts"] or []
        assert len(places) == len(pictures) == len(shown), name
        for given_one, sent in zip(pictures, shown, strict=True):
            assert np.array_equal(pixels(given_one), pixels(sent["image_url"])), name


def pixels(held: dict[str, Any]) -> Any:
    return np.asarray(Image.open(BytesIO(b64decode(held["url"].split(",")[1]))).convert("RGB"))


def test_an_image_has_as_many_tokens_as_the_library_makes(model: Path) -> None:
    encoder = Library.from_file(str(model / "tekken.json")).instruct_tokenizer.image_encoder
    assert encoder is not None
    sizes = encoder.image_config
    unit = sizes.image_patch_size * sizes.spatial_merge_size
    processor = MistralCommonProcessor(unit, sizes.max_image_size)
    for width, height in tiled_models.sizes():
        layout = processor.layout(width, height)
        made = encoder._image_to_num_tokens(Image.new("1", (width, height)))
        assert (layout.width // unit, layout.height // unit) == made, (width, height)


async def test_engines_that_go_by_config_json_are_sent_one_token_for_each(
    model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = lay_out(model_dir("tekken_240911"), tmp_path / "m")
    lines = tiled_models.MODELS["mistral3"]
    (directory / "config.json").write_text(json.dumps({**lines.config, "image_token_index": 10}))
    (directory / "preprocessor_config.json").write_text(json.dumps(lines.preprocessor))
    body = {"messages": CHATS["images between texts"]}
    (answer,) = await answers(directory, [body], config_format="hf")
    given = answer.raise_for_status().json()
    assert given["token_ids"].count(10) == 2
    (first, second) = given["content_places"]
    assert first["length"] == second["length"] == 1
    assert [given["token_ids"][place["offset"]] for place in (first, second)] == [10, 10]
    assert len(first["token_ids"]) > len(second["token_ids"]) > 10
    (own,) = await answers(directory, [body])
    assert own.json()["content_places"][0]["length"] > 1, "params.json counts where nothing else is said"


async def test_every_api_gives_the_prompt_of_a_chat(model: Path) -> None:
    url = ONE["image_url"]["url"]
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    parts = {
        "responses": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "Well?"}],
        "messages": [{"type": "image", "source": source}, text("Well?")],
        "chat/completions": [ONE, text("Well?")],
    }
    bodies = []
    for api, content in parts.items():
        said = [{"role": "user", "content": content}]
        body = {"input": said} if api == "responses" else {"messages": said, "max_tokens": 4}
        bodies.append({"model": "m", **body})
    replies = await answers(model, bodies, [f"/v1/{api}/render" for api in parts])
    read = [answer.raise_for_status().json() for answer in replies]
    given = [(each["token_ids"], each["content_parts"], each["content_places"]) for each in read]
    assert given[0] == given[1] == given[2]


async def test_images_that_the_prompt_has_in_another_order_are_refused(
    model_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of tools are put in the order of their calls; up to version 13 they are texts."""
    directory = lay_out(model_dir("tekken_240911"), tmp_path / "m")
    real = MistralTokenizer.chat

    def reordered(self: MistralTokenizer, request: Any) -> tuple[list[int], list[int]]:
        ids, numbers = real(self, request)
        return ids, numbers[::-1]

    monkeypatch.setattr(MistralTokenizer, "chat", reordered)
    one, two = (
        {"messages": CHATS["image first"]},
        {"messages": CHATS["images between texts"]},
    )
    good, bad = await answers(directory, [one, two])
    assert good.status_code == 200
    assert bad.status_code == 400
    assert "order" in bad.json()["error"]["message"]


async def test_masks_are_not_sent_for_mistrals_own_format(
    model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = lay_out(model_dir("tekken_240911"), tmp_path / "m")
    (answer,) = await answers(directory, [{"messages": CHATS["image first"]}], mm_images_in_runs="masks")
    assert answer.status_code == 400
    assert "--mm-images-in-runs" in answer.json()["error"]["message"]


async def test_a_model_without_vision_takes_no_images(
    model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = lay_out(model_dir("tekken_240911"), tmp_path / "m")
    params = json.loads((directory / "params.json").read_text())
    del params["vision_encoder"]
    (directory / "params.json").write_text(json.dumps(params))
    (answer,) = await answers(directory, [{"messages": CHATS["image first"]}])
    assert answer.status_code == 400
    assert "not a multimodal model" in answer.json()["error"]["message"]
