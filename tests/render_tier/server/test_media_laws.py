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

    def answer(self, path: str, body: Any) -> httpx.Response:
        return self._runner.run(self._client.post(path, json=body))

    def ask(self, path: str, body: Json) -> bytes:
        response = self.answer(path, body)
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


IMAGE, VIDEO = image_part(30, 40, "PNG", 1, 0), video_part(2, 40, 30)
IMAGE_URL = IMAGE["image_url"]["url"]
SOURCE = {"type": "base64", "media_type": "image/png", "data": IMAGE_URL.partition(",")[2]}
GOOD: list[tuple[str, Json]] = [
    (
        PATH,
        {"messages": [{"role": "user", "content": [{**IMAGE, "uuid": "a"}, VIDEO]}], "mm_payload": "none"},
    ),
    (PATH, {"messages": [{"role": "tool", "tool_call_id": "a", "content": [IMAGE]}]}),
    ("/tokenize", {"messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]}]}),
    (
        "/v1/messages/render",
        {
            "model": "m",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": [{"type": "image", "source": SOURCE}]}],
        },
    ),
    (
        "/v1/responses/render",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE_URL}]}]},
    ),
]
Place = tuple[str | int, ...]


def places(value: Any, so_far: Place = ()) -> Iterator[Place]:
    yield so_far
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, held in below:
        yield from places(held, (*so_far, name))


def with_other(value: Any, place: Place, other: Any) -> Any:
    if not place:
        return other
    copy = value.copy()
    copy[place[0]] = with_other(value[place[0]], place[1:], other)
    return copy


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["image_url", IMAGE_URL]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["url", "type", "image_url", "video_url", "uuid", "text"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


@given(st.sampled_from([(path, body, place) for path, body in GOOD for place in places(body)]), ANY)
@settings(max_examples=300)
def test_whatever_is_in_the_place_of_something_is_no_fault_of_the_server(
    servers: dict[str, Server], asked: tuple[str, Json, Place], other: Any
) -> None:
    path, body, place = asked
    answer = servers["qwen2_5_vl"].answer(path, with_other(body, place, other))
    assert answer.status_code < 500, answer.text
