"""Prompts whose images' places are no tokens (`<image>`, of InternVL's) are vLLM's.

What its processor gave for the texts is recorded (`tests/vllm/record_image_prompts.py`).
"""

from __future__ import annotations

import json
from asyncio import to_thread
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from render_tier.model import ModelLoadError
from render_tier.server.service import Service
from tests.support import video_corpus
from tests.support.image_corpus import PATH, chat, part, text
from tests.support.images import file
from tests.support.pixel_cases import image
from tests.support.render_app import app_client, idle, load_service, settings_for
from tests.support.tiled_models import FIRST_ADDED, RECORDED, SHOWN, TEXTS, digest, lay_out
from tests.support.video_corpus import film, frames_url

NAME = "internvl_chat"
RUNS = "a\t\t<image>b"
"""Its tokens before the place are not those of the text before it alone."""
IMAGE = part(file(Image.fromarray(image("noise", *SHOWN))))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, model_dir: Callable[[str], Path]) -> Path:
    return lay_out(NAME, model_dir("qwen3").parent, tmp_path_factory.mktemp("spelled") / NAME)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return dict(zip(TEXTS, json.loads(RECORDED.read_text())["models"][NAME]["texts"], strict=True))


def with_places(words: str) -> dict[str, Any]:
    return chat(text(words), *[IMAGE] * words.count("<image>"))


async def answers(directory: Path, *requests: tuple[str, Any], **settings: Any) -> list[httpx.Response]:
    """Without pixels."""
    made = settings_for(directory, **settings)
    app, client = await app_client(made, await to_thread(load_service, made))
    named = [(path, body | ({"mm_payload": "none"} if path == PATH else {})) for path, body in requests]
    try:
        return [await client.post(path, json=body) for path, body in named]
    finally:
        await client.aclose()
        await idle(app)


async def test_places_in_texts_are_vllms(directory: Path, expected: dict[str, Any]) -> None:
    given = await answers(directory, *((PATH, with_places(words)) for words in TEXTS))
    found = {words: each.json()["token_ids"] for words, each in zip(TEXTS, given, strict=True)}
    assert {words: digest(ids) for words, ids in found.items()} == expected
    counted = await answers(directory, *(("/tokenize", with_places(words)) for words in TEXTS))
    assert [each.json()["tokens"] for each in counted] == list(found.values())


async def test_places_are_in_front_of_a_text_that_does_not_say_them(
    directory: Path, expected: dict[str, Any]
) -> None:
    (answer,) = await answers(directory, (PATH, chat(text("What is it?"), IMAGE)))
    assert digest(answer.json()["token_ids"]) == expected["<image>\nWhat is it?"]


async def test_special_tokens_of_users_are_kept_apart_from_places(
    directory: Path, expected: dict[str, Any]
) -> None:
    words = [each for each in TEXTS if each != RUNS]
    spelled = "</img> and <IMG_CONTEXT>\n<image>"
    requests = [(PATH, with_places(each)) for each in [*words, spelled]]
    *given, literal = await answers(directory, *requests, escape_user_specials=True)
    assert [digest(each.json()["token_ids"]) for each in given] == [expected[each] for each in words]
    ids, context = literal.json()["token_ids"], FIRST_ADDED + 2
    (where,) = literal.json()["features"]["mm_placeholders"]["image"]
    assert ids.count(context) == where["length"]
    assert ids[where["offset"] : where["offset"] + where["length"]] == [context] * where["length"]


async def test_videos_are_placed_as_images_are(directory: Path) -> None:
    film_part = video_corpus.part(frames_url(film(2, 64, 48)))
    bodies = [chat(text(words), film_part, IMAGE) for words in ("See?", "See <video> and\t\t<image>b")]
    requests = [(PATH, body) for body in bodies] + [("/tokenize", body) for body in bodies]
    plain = [each.json() for each in await answers(directory, *requests)]
    guarded = [each.json() for each in await answers(directory, *requests, escape_user_specials=True)]
    ids = [each["token_ids"] for each in plain[:2]]
    assert [each["tokens"] for each in plain[2:]] == ids
    assert [each["token_ids"] for each in guarded[:2]] == ids
    assert [each["tokens"] for each in guarded[2:]] == ids
    context, frame = FIRST_ADDED + 2, 151656
    for answer in plain[:2]:
        found = [
            set(answer["token_ids"][where["offset"] : where["offset"] + where["length"]])
            for where in answer["features"]["mm_placeholders"]["image"]
        ]
        assert found == [{frame}, {frame}, {context}]


async def test_a_request_may_say_how_many_tiles(directory: Path) -> None:
    asked: list[dict[str, Any]] = [{"max_dynamic_patch": 1}, {"dynamic_image_size": False}, {"foo": 1}]
    bodies = [{**chat(IMAGE), "mm_processor_kwargs": each} for each in asked]
    *one, refused = await answers(directory, *((PATH, body) for body in bodies), trust_request_mm_kwargs=True)
    for answer in one:
        assert [where["length"] for where in answer.json()["features"]["mm_placeholders"]["image"]] == [256]
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "mm_processor_kwargs.foo"


@pytest.mark.parametrize("guarded", [False, True])
async def test_more_places_than_images_are_refused(directory: Path, guarded: bool) -> None:
    said = {"role": "assistant", "content": "Write <image>."}
    asked = {"role": "user", "content": [text("Why?"), IMAGE]}
    bodies = [chat(text("<image> or <image>?"), IMAGE), {"messages": [said, asked]}]
    given = await answers(directory, *((PATH, body) for body in bodies), escape_user_specials=guarded)
    assert [each.status_code for each in given] == [400, 400]
    assert "Found more '<image>' placeholders" in given[0].json()["error"]["message"]
    assert "2 places for images" in given[1].json()["error"]["message"]


async def test_without_images_the_place_is_text(directory: Path) -> None:
    words = chat(text("Write <image>\nplease"))
    (answer,) = await answers(directory, (PATH, words))
    assert "features" not in answer.json() or answer.json()["features"] is None
    assert answer.json()["token_ids"][3:6] == [7985, 366, 1805]


async def test_a_cut_prompt_keeps_its_places_whole(directory: Path) -> None:
    whole, cut, less = [
        {**with_places("Well, see\t\t<image>b"), "truncate_prompt_tokens": keep}
        for keep in (None, 3338, 3000)
    ]
    given = await answers(directory, *((PATH, body) for body in (whole, cut, less)))
    assert given[1].json()["token_ids"] == given[0].json()["token_ids"][-3338:]
    assert given[2].status_code == 400
    assert "would cut off an image" in given[2].json()["error"]["message"]


def test_a_tokenizer_that_looks_across_special_tokens_is_refused(directory: Path, tmp_path: Path) -> None:
    for name in directory.iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Prepend", "prepend": "_"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match="looks across special tokens"):
        Service.load(settings_for(tmp_path))
    assert Service.load(settings_for(tmp_path, limit_mm_per_prompt={"image": 0})).images is None
