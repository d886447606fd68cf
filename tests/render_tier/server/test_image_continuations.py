"""Conversations with images that go on from the token IDs of the turn before."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from render_tier.server.service import Service
from tests.support import vision_models
from tests.support.image_corpus import PATH, part, text
from tests.support.images import file, picture
from tests.support.render_app import app_client, idle, load_service, settings_for

SMALL, LARGE = file(picture(64, 48)), file(picture(300, 200, seed=4))
Json = dict[str, Any]


@pytest.fixture(scope="module", params=["qwen2_5_vl", "gemma3"])
def service(request: Any, tmp_path_factory: pytest.TempPathFactory, qwen3_dir: Path) -> Service:
    directory = tmp_path_factory.mktemp("continued") / request.param
    vision_models.lay_out(request.param, qwen3_dir.parent, directory)
    return load_service(settings_for(directory, served_model_name=("m",)))


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    app, client = await app_client(settings_for(service.assets.directory, served_model_name=("m",)), service)
    yield client
    await client.aclose()
    await idle(app)


async def render(client: httpx.AsyncClient, messages: list[Json], **fields: Any) -> Json:
    response = await client.post(PATH, json={"messages": messages, **fields})
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def ids_of(client: httpx.AsyncClient, words: str) -> list[int]:
    answer = await client.post("/tokenize", json={"prompt": words, "add_special_tokens": False})
    ids: list[int] = answer.json()["tokens"]
    return ids


def places(answer: Json) -> list[list[int]]:
    """The tokens of each image."""
    ids = answer["token_ids"]
    return [
        ids[where["offset"] : where["offset"] + where["length"]]
        for where in answer["features"]["mm_placeholders"]["image"]
    ]


FIRST: list[Json] = [{"role": "user", "content": [part(SMALL), text("What is it?")]}]
SAID = "A gradient, surely"
NEXT: list[Json] = [
    *FIRST,
    {"role": "assistant", "content": SAID},
    {"role": "user", "content": [text("And these?"), part(LARGE), part(SMALL)]},
]


async def test_the_prompt_goes_on_from_ids_with_images(client: httpx.AsyncClient) -> None:
    """The model has cut its words otherwise than the tokenizer, so the images after them stand elsewhere."""
    first = await render(client, FIRST)
    whole = await render(client, NEXT)
    letters = [token for letter in SAID for token in await ids_of(client, letter)]
    given = {"prompt_token_ids": first["token_ids"], "output_token_ids": letters}
    answer = await render(client, NEXT, continuation=given, continuation_strict=True)
    carried = [*first["token_ids"], *letters]
    assert answer["continuation"] == {"exact": True, "kept_tokens": len(carried)}
    assert answer["token_ids"][: len(carried)] == carried
    assert len(answer["token_ids"]) > len(whole["token_ids"])
    features, expected = answer["features"], whole["features"]
    for field in ("mm_hashes", "kwargs_data", "mm_metadata"):
        assert features[field] == expected[field]
    assert places(answer) == places(whole)
    assert features["mm_placeholders"]["image"][0] == expected["mm_placeholders"]["image"][0]
    assert features["mm_placeholders"]["image"][1:] != expected["mm_placeholders"]["image"][1:]


async def test_a_third_turn_goes_on_from_the_second(client: httpx.AsyncClient) -> None:
    first = await render(client, FIRST)
    letters = [token for letter in SAID for token in await ids_of(client, letter)]
    given = {"prompt_token_ids": first["token_ids"], "output_token_ids": letters}
    second = await render(client, NEXT, continuation=given)
    said = await ids_of(client, "Two more.")
    messages = [*NEXT, {"role": "assistant", "content": "Two more."}, {"role": "user", "content": "Well?"}]
    given = {"prompt_token_ids": second["token_ids"], "output_token_ids": said}
    third = await render(client, messages, continuation=given, continuation_strict=True)
    assert third["token_ids"][: len(second["token_ids"])] == second["token_ids"]
    assert third["features"] == second["features"]


async def test_a_conversation_whose_images_differ_is_rendered_whole(client: httpx.AsyncClient) -> None:
    first = await render(client, FIRST)
    said = await ids_of(client, SAID)
    given = {"prompt_token_ids": first["token_ids"], "output_token_ids": said}
    more: list[Json] = [
        {"role": "user", "content": [part(SMALL), part(SMALL), text("What is it?")]},
        *NEXT[1:],
    ]
    fewer: list[Json] = [{"role": "user", "content": "What is it?"}, *NEXT[1:]]
    larger: list[Json] = [{"role": "user", "content": [part(LARGE), text("What is it?")]}, *NEXT[1:]]
    if len((await render(client, larger[:1]))["token_ids"]) == len(first["token_ids"]):
        larger = more  # to Gemma 3 all images are as long
    for messages in (more, fewer, larger):
        answer = await render(client, messages, continuation=given)
        whole = await render(client, messages)
        assert answer["continuation"]["exact"] is False
        report = answer["continuation"]
        assert report["message"] == 0
        told = "with its images and videos" if messages is fewer else "image or video in it (of another size"
        assert told in report["detail"]
        assert (answer["token_ids"], answer["features"]) == (whole["token_ids"], whole["features"])
        refused = await client.post(
            PATH, json={"messages": messages, "continuation": given, "continuation_strict": True}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages.0")


async def test_another_image_with_as_many_tokens_is_told_apart_by_its_hash(client: httpx.AsyncClient) -> None:
    first = await render(client, FIRST)
    given = {"prompt_token_ids": first["token_ids"], "output_token_ids": await ids_of(client, SAID)}
    other = [
        {"role": "user", "content": [part(file(picture(64, 48, seed=8))), text("What is it?")]},
        *NEXT[1:],
    ]
    answer = await render(client, other, continuation=given, continuation_strict=True)
    assert answer["features"]["mm_hashes"] == (await render(client, other))["features"]["mm_hashes"]


IMAGES = [file(picture(width, height, seed=width)) for width, height in ((28, 28), (64, 48), (30, 120))]
WORDS = ("See:\n", "Well?", "\n\nOnce more:\n\n", "naïve 图片 🙂", "a,b;c", "  ", "\n")


def pieces(chance: random.Random, words: str) -> list[str]:
    """The text in parts, of which each becomes tokens of its own."""
    cuts = sorted(chance.sample(range(1, len(words)), chance.randint(0, len(words) - 1)))
    return [words[start:end] for start, end in itertools.pairwise([0, *cuts, len(words)])]


def question(chance: random.Random) -> Json:
    kinds = [chance.random() < 0.5 for _ in range(chance.randint(1, 4))]
    parts = [part(chance.choice(IMAGES)) if kind else text(chance.choice(WORDS)) for kind in kinds]
    return {"role": "user", "content": [*parts, text("What now?")]}


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_was_said_the_images_are_where_the_prompt_has_them(
    client: httpx.AsyncClient, seed: int
) -> None:
    chance = random.Random(seed)
    first: Json = {"role": "user", "content": [part(IMAGES[seed % 3]), text("What is it?")]}
    messages, prompt = [first], await render(client, [first])
    for _ in range(4):
        said = f"A gradient{chance.choice(WORDS)}of {chance.randint(1, 9999)} colors."
        output = [token for piece in pieces(chance, said) for token in await ids_of(client, piece)]
        messages = [*messages, {"role": "assistant", "content": said}, question(chance)]
        carried = [*prompt["token_ids"], *output]
        given = {"prompt_token_ids": prompt["token_ids"], "output_token_ids": output}
        prompt = await render(client, messages, continuation=given, continuation_strict=True)
        whole = await render(client, messages)
        assert prompt["token_ids"][: len(carried)] == carried
        assert prompt["features"]["mm_hashes"] == whole["features"]["mm_hashes"]
        assert places(prompt) == places(whole)
        spelled = [
            (await client.post("/detokenize", json={"tokens": each["token_ids"]})).json()["prompt"]
            for each in (prompt, whole)
        ]
        assert spelled[0] == spelled[1]
