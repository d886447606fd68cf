"""Laws of prompts with images and videos, whatever is between them: what engines are told of the places fits
the prompt and the items, and whoever asks for the prompt alone is told of the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.legs import read_render_reply
from orchestrator.core.token_in import read_token_request
from render_tier.server.service import Service
from tests.support import video_models, vision_models
from tests.support.image_corpus import PATH
from tests.support.images import ORIENTATION, Image, data_url, file, picture
from tests.support.render_app import app_client, idle, load_service, settings_for
from tests.support.video_corpus import film, frames_url

MODELS = {
    "gemma3": vision_models,
    "internvl_chat": video_models,
    "internvl_small": video_models,
    "qwen2_5_vl": video_models,
    "qwen3_vl": video_models,
}
NO_VIDEOS = "gemma3"
SPELLED = "internvl_chat"
"""A text that spells `<image>` is the place of one."""
Json = dict[str, Any]


class Server:
    def __init__(self, service: Service) -> None:
        self._runner = asyncio.Runner()
        settings = settings_for(service.assets.directory, served_model_name=("m",))
        self._app, self._client = self._runner.run(app_client(settings, service))

    def ask(self, path: str, body: Json) -> bytes:
        response: httpx.Response = self._runner.run(self._client.post(path, json=body))
        assert response.status_code == 200, response.text[:500]
        return response.content

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(idle(self._app))
        self._runner.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, qwen3_dir: Path) -> Iterator[dict[str, Server]]:
    scratch = tmp_path_factory.mktemp("laws")
    opened = {}
    for name, models in MODELS.items():
        source = qwen3_dir.parent if models is vision_models else qwen3_dir
        directory = models.lay_out(name, source, scratch / name)
        opened[name] = Server(load_service(settings_for(directory, served_model_name=("m",))))
    yield opened
    for server in opened.values():
        server.close()


def image_part(width: int, height: int, form: str, orientation: int, seed: int) -> Json:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = file(picture(width, height, seed=seed), form, exif=exif)
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def video_part(frames: int, width: int, height: int) -> Json:
    return {"type": "video_url", "video_url": {"url": frames_url(film(frames, width, height))}}


SIDES = st.integers(20, 90)
TEXTS = st.builds(
    lambda text: {"type": "text", "text": text},
    st.text(st.sampled_from("\n\n\n a<>|ä."), max_size=6)
    | st.sampled_from(["\n\n", "\n", "<image>", "x\n\n\n"]),
)
IMAGES = st.builds(
    image_part,
    SIDES,
    SIDES,
    st.sampled_from(["JPEG", "PNG", "TIFF"]),
    st.sampled_from([1, 3, 6]),
    st.integers(0, 2),
)
VIDEOS = st.builds(video_part, st.integers(2, 5), SIDES, SIDES)


def chats(name: str) -> st.SearchStrategy[list[Json]]:
    texts = TEXTS.filter(lambda part: part["text"] != "<image>") if name == SPELLED else TEXTS
    part = texts | IMAGES if name == NO_VIDEOS else texts | IMAGES | VIDEOS
    contents = st.lists(st.lists(part, min_size=1, max_size=5), min_size=1, max_size=3)
    return contents.map(
        lambda each: [
            {"role": "user" if number % 2 == 0 else "assistant", "content": parts}
            for number, parts in enumerate(each)
        ]
    )


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
@settings(max_examples=15)
def test_places_fit_the_prompt_and_its_items(
    servers: dict[str, Server], name: str, data: st.DataObject
) -> None:
    server, messages = servers[name], data.draw(chats(name))
    asked = {"messages": messages, "request_id": "r", "max_tokens": 8}
    reply = server.ask(PATH, asked)
    # Places that are in the prompt's order, disjoint and inside it; of media in messages that users wrote.
    prompt = read_render_reply(reply)
    features = msgspec.json.decode(reply)["features"]
    if features is not None:
        whole = {"token_ids": prompt.token_ids, "sampling_params": {"max_tokens": 8}, "features": features}
        # The grids of items are those of their places; one hash is one item.
        assert read_token_request(msgspec.json.encode(whole)).prompt.media == prompt.media
    shown = {prompt.token_ids[item.offset + place] for item in prompt.media for place in range(item.length)}
    held = sum(item.length for item in prompt.media)
    assert sum(token in shown for token in prompt.token_ids) == held
    assert len(shown) <= 2  # one token for images, one for videos
    counted = msgspec.json.decode(server.ask("/tokenize", {"messages": messages}))
    assert (counted["tokens"], counted["count"]) == (prompt.token_ids, len(prompt.token_ids))
    explained = msgspec.json.decode(server.ask(f"{PATH}?explain=true", asked))
    assert [token["id"] for token in explained["tokens"]] == prompt.token_ids
    assert explained["request"]["features"] == features
