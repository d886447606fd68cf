"""Prompts and items of models that are shown an image as tiles, or as lines of patches, are vLLM's.

What its processors gave is recorded (`tests/vllm/record_image_prompts.py`).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from struct import pack
from typing import Any

import httpx
import msgspec
import pytest
from PIL import Image
from tokenizers import Tokenizer

from render_tier.multimodal.families import Family, Replacement, family_of
from render_tier.multimodal.item import ImageProcessor, ImageRefused
from render_tier.multimodal.placeholders import Range, expand
from render_tier.multimodal.prepared import ImagePreparation, PreparedImage
from render_tier.multimodal.processors import image_processor
from render_tier.multimodal.vision import UNCHANGED
from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.support.image_corpus import PATH, chat, part, read_item, text
from tests.support.images import file
from tests.support.pixel_cases import image
from tests.support.render_app import app_client, idle, settings_for
from tests.support.tiled_models import (
    FIRST_ADDED,
    MODELS,
    RECORDED,
    TiledModel,
    digest,
    lay_out,
    prompt,
    prompts,
    sizes,
)

NOTHING = b64encode(msgspec.msgpack.encode({}))


class Added:
    """The tokens that a model adds to its vocabulary."""

    def __init__(self, model: TiledModel) -> None:
        self._tokens = model.tokens
        self._spelled = list(model.spelled)

    def token_id(self, text: str) -> int | None:
        return FIRST_ADDED + self._tokens.index(text) if text in self._tokens else None

    def encode(self, text: str) -> list[int]:
        assert text == "<image>"
        return self._spelled


class Real:
    """A model's own vocabulary."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def token_id(self, text: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


Opened = tuple[str, Family, ImageProcessor]


@pytest.fixture(scope="module", params=MODELS)
def opened(request: pytest.FixtureRequest, model_dir: Callable[[str], Path]) -> Opened:
    model = MODELS[request.param]
    words = Added(model) if model.tokens else Real(model_dir(model.tokenizer))
    family = family_of(model.config, words, words.encode)  # type: ignore[arg-type]
    assert family is not None
    overrides = {**model.overrides, **(UNCHANGED if family.engine_normalizes else {})}
    processor = image_processor(model.config, model.preprocessor, overrides, model.processor)
    return request.param, family, processor


def embeddings(replacement: Replacement) -> int:
    if replacement.mask is not None:
        return sum(replacement.mask)
    return replacement.count * (1 + len(replacement.later))


def runs(where: Range) -> list[list[int]]:
    """[first, last] of each run of tokens that embeddings replace."""
    mask = (True,) * where.length if where.mask is None else where.mask
    grouped = groupby(range(where.length), key=mask.__getitem__)
    found = [list(places) for is_embedded, places in grouped if is_embedded]
    return [[where.offset + places[0], where.offset + places[-1]] for places in found]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    models: dict[str, Any] = json.loads(RECORDED.read_text())["models"]
    return models


def test_an_image_has_as_many_tokens_as_embeddings(opened: Opened, recorded: dict[str, Any]) -> None:
    name, family, processor = opened

    def count(width: int, height: int) -> int | None:
        try:
            layout = processor.layout(width, height)
        except ImageRefused:
            return None
        return embeddings(family.replacement(layout, width, height))

    given = {size: count(*size) for size in sizes()}
    # Where vLLM has no token for an image of Pixtral's and Mistral 3's, its processor makes no picture of it.
    assert given == {
        size: found or None for size, found in zip(sizes(), recorded[name]["counts"], strict=True)
    }


def test_prompts_and_items_are_vllms(opened: Opened, recorded: dict[str, Any]) -> None:
    name, family, processor = opened
    preparation = ImagePreparation(
        *(family, processor),
        model="m",
        float_type="bfloat16",
        as_bytes=family.engine_normalizes,
        in_runs="masks",
        max_pixels=1 << 24,
        cache_bytes=0,
    )
    for given, expected in zip(prompts(name), recorded[name]["prompts"], strict=True):
        images = [prepared(preparation, width, height) for width, height in given]
        places = prompt(name, len(images), stand_ins=True)
        ids, ranges = expand(places, family, [each.replacement for each in images])
        assert digest(ids) == expected["ids"], given
        embedded = [run for where in expected["embedded"] for run in where]
        assert [run for where in ranges for run in runs(where)] == embedded, given
        if any(where.mask for where in ranges):
            assert [[where.offset, where.length] for where in ranges] == expected["ranges"], given
        for ours, theirs in zip(images, expected["items"], strict=True):
            tiles = theirs[pixels_of(theirs)]["tensor"][1][0]
            item = json.loads(json.dumps(read_item(padded(together(ours), tiles))))
            assert alone(item) == alone(theirs), given
            kept = {field for field, value in theirs.items() if value["layout"][1]["keep_on_cpu"]}
            for own in ours.items:
                assert set(read_item((own.metadata or NOTHING).decode())) == kept


@pytest.fixture(params=["llava_next", "internvl", "internvl_chat", "mistral3"])
def served(request: pytest.FixtureRequest, tmp_path: Path, qwen3_dir: Path) -> tuple[str, Settings, Service]:
    directory = lay_out(request.param, qwen3_dir.parent, tmp_path / request.param)
    settings = settings_for(directory, mm_images_in_runs="masks")
    return request.param, settings, Service.load(settings)


async def answered(settings: Settings, service: Service) -> httpx.Response:
    app, client = await app_client(settings, service)
    try:
        return await client.post(PATH, json=chat(text("See"), part(png(640, 480)), text("Well?")))
    finally:
        await client.aclose()
        await idle(app)


async def test_a_chat_is_answered_with_them(
    served: tuple[str, Settings, Service], recorded: dict[str, Any]
) -> None:
    name, settings, service = served
    answer = (await answered(settings, service)).raise_for_status().json()
    (where,), (expected, *_) = answer["features"]["mm_placeholders"]["image"], recorded[name]["prompts"]
    image_token = MODELS[name].image_token
    places = [place for place, token in enumerate(answer["token_ids"]) if token == image_token]
    mask = where.get("is_embed", [True] * where["length"])
    assert places == [where["offset"] + index for index, embedded in enumerate(mask) if embedded]
    assert len(places) == sum(last + 1 - first for first, last in expected["embedded"][0])
    (item,) = answer["features"]["kwargs_data"]["image"]
    assert json.loads(json.dumps(read_item(item))) == expected["items"][0]


def png(width: int, height: int) -> bytes:
    return file(Image.fromarray(image("noise", width, height)))


def prepared(preparation: ImagePreparation, width: int, height: int) -> PreparedImage:
    data = png(width, height)
    return preparation.prepare(preparation.load(preparation.key(data), data))


def together(image: PreparedImage) -> bytes:
    """Its items as the one that vLLM has of it: pictures after each other, and how many they are."""
    first, *more = (msgspec.msgpack.decode(b64decode(item.kwargs)) for item in image.items)
    if not more:
        return image.items[0].kwargs
    kind, shape, raw = first["pixel_values"]["data"]
    pixels = b"".join(each["pixel_values"]["data"][2].data for each in (first, *more))
    count = len(image.items)
    first["pixel_values"]["data"] = kind, (count, *shape[1:]), msgspec.msgpack.Ext(raw.code, pixels)
    kind, shape, raw = first["num_patches"]["data"]
    first["num_patches"]["data"] = kind, shape, msgspec.msgpack.Ext(raw.code, pack("<q", count))
    return b64encode(msgspec.msgpack.encode(first))


def padded(item: bytes, tiles: int) -> str:
    """With as many tiles: LLaVA-NeXT's processor appends empty ones, which no engine looks at, to the images
    of a prompt whose others have more."""
    fields = msgspec.msgpack.decode(b64decode(item))
    pixels = fields[pixels_of(fields)]
    kind, (own, *shape), raw = pixels["data"]
    zeros = bytes(len(raw.data) // own * (tiles - own))
    pixels["data"] = kind, (tiles, *shape), msgspec.msgpack.Ext(raw.code, raw.data + zeros)
    return b64encode(msgspec.msgpack.encode(fields)).decode()


def pixels_of(fields: dict[str, Any]) -> str:
    (name,) = (name for name in fields if name.startswith("pixel_values"))
    return name


def alone(item: dict[str, Any]) -> dict[str, Any]:
    """Without the number of items of its call to the processor."""
    copied = deepcopy(item)
    for field in copied.values():
        field["layout"][1].pop("batch_size", None)
    return copied
