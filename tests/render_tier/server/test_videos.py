"""Videos over HTTP: prompts and items that are vLLM's, and what is refused.

What vLLM made of the same chats is recorded (`tests/vllm/record_videos.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from PIL import Image

from orchestrator.core.legs import read_render_reply
from render_tier.model import ModelLoadError
from render_tier.multimodal.prepared import PreparedVideo
from render_tier.multimodal.videos.prepared import LoadedVideo
from render_tier.server.service import Service
from tests.support import video_models
from tests.support.image_corpus import PATH, read_item
from tests.support.image_origin import ok, origin
from tests.support.images import file
from tests.support.render_app import app_client, idle, load_service, settings_for
from tests.support.tiled_models import digest
from tests.support.video_corpus import (
    FILES,
    PROCESSED,
    RECORDED,
    chats,
    file_url,
    film,
    frames_url,
    image_part,
    optional_contents,
    part,
    processed_chats,
    text,
)

IN_GROUPS = ("qwen3_vl", "qwen3_5", "internvl_small", "internvl_chat")
"""Models whose videos are one item each to vLLM, and an image of each run of tokens to an engine that our
render tells."""
RECORDS: dict[str, Any] = json.loads(RECORDED.read_text())["models"]
OF_PROCESSED: dict[str, Any] = json.loads(PROCESSED.read_text())["models"]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, qwen3_dir: Path) -> dict[str, Service]:
    """Of models named as the recorded ones were: the name is a part of every hash."""
    scratch = tmp_path_factory.mktemp("videos")
    made = {}
    for name in video_models.MODELS:
        directory = video_models.lay_out(name, qwen3_dir, scratch / name)
        settings = settings_for(directory, served_model_name=("m",))
        made[name] = Service(settings, replace(load_service(settings).assets, name=name))
    return made


@asynccontextmanager
async def served(service: Service, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    settings = settings_for(service.assets.directory, served_model_name=("m",), **changes)
    if changes:
        service = await asyncio.to_thread(Service, settings, service.assets)
    app, client = await app_client(settings, service)
    try:
        yield client
        intake = app.runtime.images
        assert intake is not None
        assert (intake.files.held, intake.items.held) == (0, 0)
    finally:
        await client.aclose()
        await idle(app)


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 8, **fields}


@pytest.mark.parametrize("name", video_models.MODELS)
async def test_prompts_and_items_are_vllms(services: dict[str, Service], name: str) -> None:
    await compare(services[name], name, chats(), RECORDS[name])


@pytest.mark.parametrize("name", OF_PROCESSED)
async def test_videos_are_processed_as_a_request_says(services: dict[str, Service], name: str) -> None:
    await compare(services[name], name, processed_chats(name), OF_PROCESSED[name])


async def compare(
    service: Service, name: str, given: Mapping[str, tuple[list[Any], Any]], records: dict[str, Any]
) -> None:
    """Whole replies with what vLLM made of the same."""
    async with served(service, trust_request_mm_kwargs=True) as client:
        for title, (content, said) in given.items():
            response = await client.post(PATH, json=chat(*content, **said))
            expected = records[title]
            if "error" in expected:
                assert response.status_code == 400, title
                continue
            assert response.status_code == 200, (title, response.text)
            answer = response.json()
            assert digest(answer["token_ids"]) == expected["ids"], title
            (in_groups if name in IN_GROUPS else whole)(answer["features"], expected, title)
            read_render_reply(response.content)  # as it is checked before an engine gets it


def whole(features: dict[str, Any], expected: dict[str, Any], title: str) -> None:
    """The features are vLLM's."""
    assert features["mm_hashes"] == expected["hashes"], title
    places = {
        kind: [[[place["offset"], place["length"]]] for place in places]
        for kind, places in features["mm_placeholders"].items()
    }
    assert places == expected["ranges"], title
    items = {kind: [read_item(item) for item in each] for kind, each in features["kwargs_data"].items()}
    assert json.loads(json.dumps(items)) == expected["items"], title
    for kind, each in features["mm_metadata"].items():
        for item, of_vllm in zip(each, expected["items"][kind], strict=True):
            kept = {field for field, value in of_vllm.items() if value["layout"][1]["keep_on_cpu"]}
            assert read_item(item).keys() == kept, title


def in_groups(features: dict[str, Any], expected: dict[str, Any], title: str) -> None:
    """Each run of vLLM's places is that of an image, and a video's pixels are those of its runs together."""
    assert features.keys() >= {"mm_hashes"}
    assert {*features["mm_hashes"], *features["kwargs_data"]} == {"image"}, title
    runs = [run for places in expected["ranges"].values() for place in places for run in place]
    places = [[place["offset"], place["length"]] for place in features["mm_placeholders"]["image"]]
    assert places == sorted(runs), title
    by_place = dict(zip(map(tuple, places), features["kwargs_data"]["image"], strict=True))
    for place, of_vllm in zip(expected["ranges"]["video"], expected["items"]["video"], strict=True):
        items = [msgspec.msgpack.decode(b64decode(by_place[tuple(run)])) for run in place]
        (name,) = (field for field in items[0] if field.startswith("pixel_values"))
        pixels = b"".join(bytes(item[name]["data"][2].data) for item in items)
        of_video = "pixel_values_flat_video" if name == "pixel_values_flat" else "pixel_values_videos"
        kind, _, _, expected_pixels = of_vllm[of_video]["tensor"]
        assert hashlib.sha256(pixels).hexdigest() == expected_pixels, title
        assert {item[name]["data"][0] for item in items} == {kind}, title
        assert {shown_at_once(item) for item in items} == {1}, title
        assert len(items) == len(place), title
    for number, hashed in enumerate(expected["hashes"].get("image", [])):
        start, length = expected["ranges"]["image"][number][0]
        assert features["mm_hashes"]["image"][places.index([start, length])] == hashed, title


def shown_at_once(item: dict[str, Any]) -> int:
    """Patches in time of Qwen3-VL, frames of InternVL."""
    field = item.get("image_grid_thw") or item["image_num_patches"]
    return int.from_bytes(field["data"][2].data[:8], "little")


SMALL = part(frames_url(film(4, 64, 48)))


def reading(**media_io_kwargs: Any) -> dict[str, Any]:
    return chat(SMALL, media_io_kwargs=media_io_kwargs)


def processing(**mm_processor_kwargs: Any) -> dict[str, Any]:
    return chat(SMALL, mm_processor_kwargs=mm_processor_kwargs)


FILE = part(file_url("short.mp4"))


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("data:video/mp4;base64,AAAA", 400, "known format"),
        ("data:video/jpeg;base64,AAAA,", 400, "frame 0: not a readable image"),
        ("data:video/jpeg,AAAA", 400, "only base64 data URLs"),
        (frames_url(film(2, 900, 3)), 400, "200 times longer"),
        ("http://127.0.0.1/x", 400, "not on the public network"),
        ("http://name.invalid/x", 422, "the video's host cannot be resolved"),
        ("ftp://host/x", 400, "HTTP, data or file URL"),
        ("", 400, "the video needs a `url`"),
    ],
)
async def test_urls_that_are_refused(
    services: dict[str, Service], url: str, status: int, message: str
) -> None:
    async with served(services["qwen2_5_vl"]) as client:
        response = await client.post(PATH, json=chat(text("a"), part(url)))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, "messages.0.content.1.video_url")
    assert message in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (chat({"type": "audio_url", "audio_url": {"url": "x"}}), "messages.0.content.0", "'audio_url' parts"),
        (chat({"type": "input_audio", "input_audio": {}}), "messages.0.content.0", "'input_audio' parts"),
        (chat(SMALL, text("see <|video_pad|>")), "messages", "taken for the place of a video"),
        (chat(SMALL, truncate_prompt_tokens=3), "messages", "0 places for videos"),
        (processing(fps=2), "mm_processor_kwargs.fps", "max_pixels, min_pixels, size are for this model"),
        (processing(do_sample_frames=True), "mm_processor_kwargs.do_sample_frames", "not known here"),
        (processing(text_kwargs={}), "mm_processor_kwargs.text_kwargs", "not known here"),
        (processing(videos_kwargs=1), "mm_processor_kwargs.videos_kwargs", "an object is needed"),
        (
            processing(videos_kwargs={"num_frames": 3}),
            "mm_processor_kwargs.videos_kwargs.num_frames",
            "not known here",
        ),
        (
            processing(videos_kwargs={"size": {"longest_edge": 2**40}}),
            "mm_processor_kwargs.videos_kwargs.size.longest_edge",
            "from 1 to 268435456",
        ),
        (
            processing(images_kwargs={"max_pixels": 0}),
            "mm_processor_kwargs.images_kwargs.max_pixels",
            "from 1 to",
        ),
        (
            processing(min_pixels=10, videos_kwargs={"max_pixels": 50}),
            "mm_processor_kwargs.videos_kwargs",
            "not beside names",
        ),
        (
            processing(videos_kwargs={"max_pixels": 5, "min_pixels": 10}),
            "mm_processor_kwargs.videos_kwargs.min_pixels",
            "more than max_pixels",
        ),
        (
            processing(videos_kwargs={"size": {"height": 56, "width": 56}}),
            "mm_processor_kwargs",
            "cannot be processed with size",
        ),
        (
            processing(min_pixels=2**26),
            "messages.0.content.0.video_url",
            "pixels by mm_processor_kwargs; at most 268435456 are allowed",
        ),
        (reading(video={"num_frames": 0}), "media_io_kwargs.video.num_frames", "from 1 to 768"),
        (reading(video={"num_frames": True}), "media_io_kwargs.video.num_frames", "from 1 to 768"),
        (reading(video={"fps": 0}), "media_io_kwargs.video.fps", "from 0.001 to 240"),
        (reading(video={"fps": 1e-40}), "media_io_kwargs.video.fps", "from 0.001 to 240"),
        (reading(video={"fps": "2"}), "media_io_kwargs.video.fps", "from 0.001 to 240"),
        (reading(video={"backend": "opencv"}), "media_io_kwargs.video.backend", "not known here"),
    ],
)
async def test_refused(services: dict[str, Service], body: Any, param: str, message: str) -> None:
    async with served(services["qwen2_5_vl"], trust_request_mm_kwargs=True) as client:
        response = await client.post(PATH, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]


async def test_transparency_of_listed_frames_is_laid_on_what_a_request_says(
    services: dict[str, Service],
) -> None:
    """The file of such a list is smaller than its frames, so that vLLM's hash of it would not tell."""
    clear = part(frames_url([file(Image.new("RGBA", (100, 100), (9, 9, 9, 0)))] * 2))
    grounds = [{}, {"rgba_background_color": [0, 0, 0]}, {"rgba_background_color": [255, 255, 255]}]
    async with served(services["qwen2_5_vl"], trust_request_mm_kwargs=True) as client:
        answers = [
            (await client.post(PATH, json=chat(clear, media_io_kwargs={"image": ground}))).json()
            for ground in grounds
        ]
        named = {**clear, "uuid": "clear"}
        first = await client.post(PATH, json=chat(named))
        by_name = chat(part_by_name("clear"), media_io_kwargs={"image": grounds[1]})
        unknown = await client.post(PATH, json=by_name)
        other = await client.post(PATH, json=chat(named, media_io_kwargs={"image": grounds[1]}))
        again = await client.post(PATH, json=by_name)
    white, black, as_usual = (answer["features"] for answer in answers)
    assert white == as_usual
    assert white["kwargs_data"] != black["kwargs_data"]
    assert white["mm_hashes"] != black["mm_hashes"]
    assert first.json()["features"]["mm_hashes"] == {"video": ["clear"]}
    assert unknown.json()["error"]["type"] == "ImageRequiredError"
    assert other.json()["features"]["mm_hashes"] != first.json()["features"]["mm_hashes"]
    assert again.json()["features"]["kwargs_data"] == black["kwargs_data"]


@pytest.mark.parametrize(
    ("usual", "asked", "patches"),
    [
        ({}, {}, 32),
        ({"max_pixels": 1568}, {}, 8),
        ({"videos_kwargs": {"max_pixels": 1568}}, {}, 8),
        ({"images_kwargs": {"max_pixels": 1568}}, {}, 32),
        ({"max_pixels": 1568}, {"size": {"shortest_edge": 3136, "longest_edge": 50176}}, 32),
        ({"videos_kwargs": {"max_pixels": 1568}}, {"videos_kwargs": {"max_pixels": 50176}}, 32),
    ],
)
async def test_a_requests_settings_are_laid_over_the_servers(
    services: dict[str, Service], usual: dict[str, Any], asked: dict[str, Any], patches: int
) -> None:
    settings = {"mm_processor_kwargs": usual, "trust_request_mm_kwargs": True}
    async with served(services["qwen2_5_vl"], **settings) as client:
        answer = (await client.post(PATH, json=chat(SMALL, mm_processor_kwargs=asked))).json()
    (item,) = answer["features"]["kwargs_data"]["video"]
    assert read_item(item)["pixel_values_videos"]["tensor"][1][0] == patches


async def test_a_server_reads_videos_as_its_settings_say(services: dict[str, Service]) -> None:
    """As where a request says the same, hashes too, as in vLLM; a request's own wish goes before."""
    videos = [parts for title, parts in optional_contents().items() if title in ("a list", "a file")]
    said: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"num_frames": 3, "fps": 5.0}),
        ({"fps": 4.0}, {"fps": 4.0}),
        ({"num_frames": 2}, {"num_frames": 2}),
        ({"num_frames": 2, "fps": 0.5}, {"num_frames": 2, "fps": 0.5}),
    ]
    usual = {"video": {"num_frames": 3, "fps": 5.0}}
    async with (
        served(services["qwen2_5_vl"], trust_request_mm_kwargs=True) as plain,
        served(services["qwen2_5_vl"], trust_request_mm_kwargs=True, media_io_kwargs=usual) as set_so,
    ):
        for parts in videos:
            for asked, counts in said:
                body, same = (chat(*parts, media_io_kwargs={"video": each}) for each in (asked, counts))
                answer, expected = await set_so.post(PATH, json=body), await plain.post(PATH, json=same)
                assert answer.status_code == 200
                assert answer.json()["features"] == expected.json()["features"], asked


def test_a_fingerprint_tells_how_videos_are_read(services: dict[str, Service]) -> None:
    assets = services["qwen2_5_vl"].assets

    def fingerprint(**changes: Any) -> str:
        return Service(settings_for(assets.directory, **changes), assets).assets.fingerprint

    assert fingerprint() != fingerprint(media_io_kwargs={"video": {"num_frames": 3}})


@pytest.mark.parametrize(
    ("reading", "message"),
    [({"num_frames": -1}, "from 1 to 768"), ({"backend": "pyav"}, "media_io_kwargs.video.backend")],
)
def test_a_server_does_not_start_with_settings_of_videos_that_are_none(
    services: dict[str, Service], reading: dict[str, Any], message: str
) -> None:
    served = services["qwen2_5_vl"].assets
    with pytest.raises(ModelLoadError, match=f"--media-io-kwargs.*{message}"):
        Service(settings_for(served.directory, media_io_kwargs={"video": reading}), served)


def test_a_server_does_not_start_with_settings_that_its_processor_of_videos_does_not_have(
    services: dict[str, Service],
) -> None:
    served = services["qwen2_5_vl"].assets
    settings = settings_for(served.directory, mm_processor_kwargs={"videos_kwargs": {"fps": 1}})
    with pytest.raises(ModelLoadError, match=r"--mm-processor-kwargs: 'fps' is not known.*max_pixels"):
        Service(settings, served)
    without = settings.model_copy(update={"limit_mm_per_prompt": {"video": 0}})
    assert Service(without, served).images is not None


@pytest.mark.parametrize("scope", ["images_kwargs", "videos_kwargs"])
@pytest.mark.parametrize("given", [None, 1, ["fps"]])
def test_a_server_does_not_start_with_settings_of_one_kind_of_media_that_are_no_object(
    services: dict[str, Service], scope: str, given: Any
) -> None:
    served = services["qwen2_5_vl"].assets
    settings = settings_for(served.directory, mm_processor_kwargs={scope: given})
    with pytest.raises(ModelLoadError, match=f"--mm-processor-kwargs: '{scope}' is no object"):
        Service(settings, served)


async def test_settings_of_videos_are_refused_where_none_are_taken(services: dict[str, Service]) -> None:
    image = image_part(60, 40)
    body = chat(image, mm_processor_kwargs={"videos_kwargs": {"max_pixels": 6272}})
    settings = {"trust_request_mm_kwargs": True, "limit_mm_per_prompt": {"video": 0}}
    async with served(services["qwen2_5_vl"], **settings) as client:
        error = (await client.post(PATH, json=body)).json()["error"]
    assert error["param"] == "mm_processor_kwargs.videos_kwargs"


async def test_limits(services: dict[str, Service]) -> None:
    async def refused(*parts: Any, **changes: Any) -> str:
        async with served(services["qwen3_vl"], **changes) as client:
            response = await client.post(PATH, json=chat(*parts))
        assert response.status_code == 400
        message: str = response.json()["error"]["message"]
        return message

    one = {"video": 1}
    assert "At most 1 video(s)" in await refused(SMALL, FILE, limit_mm_per_prompt=one)
    assert "'video_url' parts are not supported" in await refused(FILE, limit_mm_per_prompt={"video": 0})
    assert "file is larger than 1024 bytes" in await refused(SMALL, max_video_bytes=1024)
    assert "file is larger than 1024 bytes" in await refused(FILE, max_video_bytes=1024)
    assert "at most 9215 pixels" in await refused(FILE, max_video_pixels=9215)
    assert "at most 3071 are allowed" in await refused(FILE, max_image_pixels=3071)
    assert "takes longer than 1e-06 seconds" in await refused(FILE, video_decoder_seconds=1e-6)


async def test_frames_so_far_apart_that_engines_have_no_positions_for_them(
    services: dict[str, Service],
) -> None:
    """An engine counts the seconds between them, and ends at a position that it does not have."""
    slow = bytearray((FILES / "clip.mp4").read_bytes().replace(b"edts", b"free"))
    frame = slow.index(b"stts") + 16
    slow[frame : frame + 4] = (10240 * 1000).to_bytes(4, "big")  # of 10240 units a second
    by_file = chat(part("data:video/mp4;base64," + b64encode(slow).decode()))
    refused = [by_file, reading(video={"fps": 0.001})]
    async with served(services["qwen2_5_vl"], trust_request_mm_kwargs=True) as client:
        for body in refused:
            for path in (PATH, "/tokenize"):
                response = await client.post(path, json=body)
                assert response.status_code == 400, response.text
                assert "too far apart" in response.json()["error"]["message"]
    async with served(services["qwen2_vl"], trust_request_mm_kwargs=True) as client:
        for body in refused:
            assert (await client.post(PATH, json=body)).status_code == 200


async def test_a_video_is_processed_once(
    services: dict[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services["qwen2_5_vl"]
    assert service.images is not None
    videos = service.images.vision.videos
    assert videos is not None
    prepare, processed = videos.prepare, []

    def counted(loaded: LoadedVideo) -> PreparedVideo:
        processed.append(loaded.key)
        return prepare(loaded)

    monkeypatch.setattr(videos, "prepare", counted)
    body = chat(part(frames_url(film(3, 40, 30, seed=77))), text("?"))
    async with served(service) as client:
        answers = await asyncio.gather(*(client.post(PATH, json=body) for _ in range(3)))
        answers.append(await client.post(PATH, json=body))
        count = await client.post("/tokenize", json=body)
    assert len({answer.text.partition("features")[2] for answer in answers}) == 1
    assert len(processed) == 1
    assert count.json()["tokens"] == answers[0].json()["token_ids"]


async def test_frames_without_opencv(services: dict[str, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("render_tier.multimodal.videos.opening.find_spec", lambda name: None)
    async with served(services["qwen2_vl"], max_video_pixels=1 << 20) as client:
        response = await client.post(PATH, json=chat(FILE))
        assert "lists of frames only" in response.json()["error"]["message"]
        assert (await client.post(PATH, json=chat(SMALL))).status_code == 200


async def test_a_video_by_its_url_and_by_its_name(services: dict[str, Service]) -> None:
    async with (
        served(services["qwen2_5_vl"], allowed_media_networks=("127.0.0.0/8",)) as client,
        origin(lambda path: ok((FILES / "short.mp4").read_bytes())) as (port, heads),
    ):
        asked = chat(part(f"http://127.0.0.1:{port}/film.mp4", uuid="film"))
        fetched = (await client.post(PATH, json=asked)).json()
        sent = (await client.post(PATH, json=chat(FILE))).json()
        named = await client.post(PATH, json=chat(part_by_name("film")))
        unknown = await client.post(PATH, json=chat(part_by_name("other")))
        image = await client.post(PATH, json=chat({"type": "image_url", "image_url": None, "uuid": "film"}))
    assert fetched["features"]["kwargs_data"] == sent["features"]["kwargs_data"]
    assert named.json()["features"] == fetched["features"]
    assert "no video is kept under this uuid" in unknown.json()["error"]["message"]
    assert "no image is kept under this uuid" in image.json()["error"]["message"]
    assert len(heads) == 1


def part_by_name(uuid: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": None, "uuid": uuid}
