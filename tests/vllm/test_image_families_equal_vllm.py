"""A real vLLM says to what our render makes of a chat with images, or videos, what it says to the files
themselves: for each family, the same tokens with the same logprobs, of a tiny model whose weights are drawn.

All engines are in one process (`seeing_engines.py`), with nothing kept from one request to the next, so that
our pixels and places are what the first of two answers comes from. The way over HTTP, and from engine to
engine, is that of `test_images.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import seeing_families, video_corpus, vllm
from tests.support.image_corpus import PATH, part, text
from tests.support.images import file, picture
from tests.support.render_app import app_client, idle, load_service, settings_for
from tests.support.video_corpus import file_url, film, frames_url
from tests.vllm.torchvision_reference import ROOT, torchvision_path

MORE_PLACES = {
    "gemma3": "256 multimodal tokens to 260",
    "gemma3_crops": "768 multimodal tokens to",
    "internvl": "448 multimodal tokens to 450",
    "internvl_chat": "448 multimodal tokens to 450",
    "mistral3": "192 multimodal tokens to 204",
    "pixtral": "588 multimodal tokens to 609",
}
"""Families whose images have tokens around or among them that vLLM's render counts among the places of
embeddings, and what an engine says to that."""
PICTURED = ("mistral3", "pixtral")
"""Families whose engines are given pictures where they read no mask."""
IN_PICTURES = "gemma3_crops"
"""Its images are one item each to vLLM, and one for each of their pictures to an engine that our render
tells."""
ONE, OTHER = (part(file(picture(448, 336, seed=seed))) for seed in (0, 7))
CONVERSATION = [
    {"role": "user", "content": [ONE, text("What is it?")]},
    {"role": "assistant", "content": "A picture."},
    {"role": "user", "content": [text("And this?"), OTHER, text("\n\nOr that?\n"), ONE]},
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "one image": [{"role": "user", "content": [ONE, text("What is to be seen?")]}],
    "another of the same size": [{"role": "user", "content": [OTHER, text("What is to be seen?")]}],
    "two of several sizes": [
        {
            "role": "user",
            "content": [
                part(file(picture(300, 200, seed=1), "JPEG")),
                part(file(picture(50, 190, "RGBA", seed=2))),
            ],
        }
    ],
    "a conversation": CONVERSATION,
}
FILM, OTHER_FILM = (video_corpus.part(frames_url(film(5, 168, 112, seed=seed))) for seed in (1, 2))
FILMS: dict[str, list[dict[str, Any]]] = {
    "a film": [{"role": "user", "content": [FILM, text("What is to be seen?")]}],
    "another film": [{"role": "user", "content": [OTHER_FILM, text("What is to be seen?")]}],
    "a file beside an image": [
        {"role": "user", "content": [ONE, text("See"), video_corpus.part(file_url("h264.mp4"))]}
    ],
}
SHOWN_FILMS = ("qwen2_5_vl", "qwen3_vl", "internvl", "internvl_chat")
IN_RUNS = ("qwen3_vl", "internvl", "internvl_chat")
"""Their films are items of the modality "video" to vLLM, and an image of each run to an engine that our
render tells."""


def chats_of(family: str) -> dict[str, list[dict[str, Any]]]:
    return CHATS | (FILMS if family in SHOWN_FILMS else {})


async def rendered(
    directory: Path, overrides: seeing_families.Json, chats: dict[str, list[dict[str, Any]]], in_runs: str
) -> dict[str, Any]:
    """The generate requests of the chats."""
    settings = settings_for(
        directory,
        served_model_name=("eye",),
        dtype="float32",
        mm_images_in_runs=in_runs,
        mm_processor_kwargs=dict(overrides),
    )
    app, client = await app_client(settings, load_service(settings))
    options = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": True, "top_logprobs": 3}
    try:
        return {
            name: (await client.post(PATH, json={"messages": messages, **options})).raise_for_status().json()
            for name, messages in chats.items()
        }
    finally:
        await client.aclose()
        await idle(app)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("families")
    given = {}
    for name, model in seeing_families.MODELS.items():
        directory = seeing_families.lay_out(name, scratch / name)
        messages = chats_of(name)
        masked = asyncio.run(rendered(directory, model.overrides, messages, "masks"))
        pictured = {}
        if name in PICTURED:
            pictured = asyncio.run(rendered(directory, model.overrides, messages, "pictures"))
        chats = {
            chat: {"messages": messages[chat], "rendered": each, "pictured": pictured.get(chat)}
            for chat, each in masked.items()
        }
        given[name] = {"directory": str(directory), "overrides": model.overrides, "chats": chats}
    path = [str(Path(__file__).parent / "torchvision_path"), torchvision_path(), str(ROOT)]
    with (scratch / "engines.log").open("w") as log:
        done = subprocess.run(
            [vllm.environment() / "bin" / "python", "-W", "ignore", "-m", "tests.vllm.seeing_engines"],
            input=json.dumps(given),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
            env=vllm.process_environment(scratch / "files") | {"PYTHONPATH": os.pathsep.join(path)},
        )
    assert done.returncode == 0, (scratch / "engines.log").read_text()[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("family", seeing_families.MODELS)
def test_an_engine_sees_what_it_would_have_seen_itself(family: str, answers: dict[str, Any]) -> None:
    chats = answers[family]["chats"]
    for name, answer in chats.items():
        apart = family == IN_PICTURES or (family in IN_RUNS and name in FILMS)
        assert answer["fed"] or apart, f"{name}: hashes, places and tensors are those of vLLM's own processor"
        assert answer["rendered"] == answer["whole"], name
        assert answer["pictured"] == (answer["whole"] if family in PICTURED else None), name
    one, other = (chats[name]["whole"] for name in ("one image", "another of the same size"))
    assert one[0] == other[0], "the IDs are the same"
    assert one[2] != other[2], "what they show is not"
    if family in SHOWN_FILMS:
        assert chats["a film"]["whole"][0] == chats["another film"]["whole"][0]
        assert chats["a film"]["whole"][2] != chats["another film"]["whole"][2]


@pytest.mark.parametrize("family", seeing_families.MODELS)
def test_what_vllms_own_render_sends_does_as_well_but_for_markers(
    family: str, answers: dict[str, Any]
) -> None:
    """The mask that tells markers from places of embeddings does not travel, so an engine has too few
    embeddings for the places that vLLM's render names: the reason why ours names the others."""
    relayed = answers[family]["relayed"]
    if family in MORE_PLACES:
        assert MORE_PLACES[family] in relayed
    else:
        assert relayed == answers[family]["chats"]["one image"]["whole"]
