"""Images over HTTP: what vLLM's render answers, what is refused, and what is held in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from blake3 import blake3

from orchestrator.core.legs import read_render_reply
from render_tier.model import ModelLoadError
from render_tier.multimodal.options import ImageOptions
from render_tier.multimodal.prepared import ImagePreparation, ItemCache
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.server.app import RenderApp
from render_tier.server.compression import ReplyCompression
from render_tier.server.replies import Reply
from render_tier.server.service import Service
from tests.support import vision_models
from tests.support.image_corpus import DATA, PATH, chat, comparable, corpus, part, text, trusted
from tests.support.image_origin import ok, origin
from tests.support.images import LOCAL, every_kind, file, picture
from tests.support.render_app import app_client, idle, load_service, settings_for

SMALL = file(picture(64, 48))


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory, qwen3_dir: Path) -> dict[str, Path]:
    scratch = tmp_path_factory.mktemp("vision")
    return {
        name: vision_models.lay_out(name, qwen3_dir.parent, scratch / name) for name in vision_models.MODELS
    }


@pytest.fixture(scope="module")
def services(directories: dict[str, Path]) -> dict[str, Service]:
    """Of models named as the recorded servers' were: the name is a part of every hash."""
    made = {}
    for name, directory in directories.items():
        settings = settings_for(directory, served_model_name=("m",))
        made[name] = Service(settings, replace(load_service(settings).assets, name=name))
    return made


class Opened:
    def __init__(self, app: RenderApp, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client

    async def render(self, body: dict[str, Any]) -> httpx.Response:
        return await self.client.post(PATH, json=body)

    async def error(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        response = await self.render(body)
        error: dict[str, Any] = response.json()["error"]
        return response.status_code, error


@pytest.fixture
async def serve(services: dict[str, Service]) -> AsyncIterator[Any]:
    opened: list[Opened] = []

    async def start(name: str = "qwen2_5_vl", **changes: Any) -> Opened:
        service = services[name]
        settings = settings_for(service.assets.directory, served_model_name=("m",), **changes)
        if changes:
            length = settings.max_model_len or service.assets.max_model_len
            assets = replace(service.assets, max_model_len=length)
            service = await asyncio.to_thread(Service, settings, assets)
        app, client = await app_client(settings, service)
        opened.append(Opened(app, client))
        return opened[-1]

    yield start
    for each in opened:
        await each.client.aclose()
        intake = each.app.runtime.images
        assert intake is not None
        assert (intake.files.held, intake.items.held) == (0, 0)
        await idle(each.app)


def recorded(name: str) -> dict[str, Any]:
    lines = map(json.loads, (DATA / f"{name}.jsonl").read_text().splitlines())
    return {line["name"]: line["answer"] for line in lines}


async def test_answers_equal_vllms(serve: Any) -> None:
    server = await serve("qwen2_5_vl")
    answers = recorded("qwen2_5_vl")
    assert answers.keys() == corpus().keys()
    for name, body in corpus().items():
        response = await server.render(body)
        given = json.loads(json.dumps(comparable(response.status_code, response.json())))
        assert given == answers[name], name


BESIDE_EACH_OTHER = {"two in a row", "three", "uuid of one of two"}
"""vLLM's ranges of Gemma's images hold the line breaks around them, of which two that meet become one token:
they overlap then, and its own check refuses them."""


async def test_gemma_answers_equal_vllms_but_for_what_a_range_holds(serve: Any) -> None:
    server = await serve("gemma3")
    answers = recorded("gemma3")
    assert answers.keys() == corpus().keys()
    for name, body in corpus().items():
        response = await server.render(body)
        given = json.loads(json.dumps(comparable(response.status_code, response.json())))
        if name in BESIDE_EACH_OTHER:
            assert (given["status"], answers[name]["status"]) == (200, 400), name
            continue
        if (features := answers[name].get("features")) is not None:
            # [line breaks, begin, 256 that embeddings replace, end, line breaks]
            for where in features["mm_placeholders"]["image"]:
                assert where["length"] == 260, name
                where.update(offset=where["offset"] + 2, length=256)
        assert given == answers[name], name


async def test_answers_to_trusted_requests_equal_vllms(serve: Any) -> None:
    server = await serve(trust_request_mm_kwargs=True)
    answers = recorded("qwen2_5_vl-trusted")
    assert answers.keys() == trusted().keys()
    for name, body in trusted().items():
        response = await server.render(body)
        given = json.loads(json.dumps(comparable(response.status_code, response.json())))
        assert given == answers[name], name
        # Modalities, counts, ranges and grids, as they are checked before an engine gets them.
        places = response.json()["features"]["mm_placeholders"]["image"]
        read = read_render_reply(response.content)
        assert [item.length for item in read.media] == [place["length"] for place in places]


async def test_a_server_reads_images_as_its_settings_say(serve: Any) -> None:
    """As where a request says the same, hashes too, as in vLLM; a request's own wish goes before."""
    asked = await serve(trust_request_mm_kwargs=True)
    pink: dict[str, Any] = {"image": {"rgba_background_color": [255, 0, 128]}}
    blue: dict[str, Any] = {"image": {"rgba_background_color": [0, 0, 255]}}
    clear = every_kind()["rgba.png"]
    set_so = await serve(trust_request_mm_kwargs=True, media_io_kwargs=pink)
    plain, by_request = chat(part(clear)), chat(part(clear), media_io_kwargs=pink)
    expected = (await asked.render(by_request)).json()["features"]
    assert (await set_so.render(plain)).json()["features"] == expected
    assert (await asked.render(plain)).json()["features"] != expected
    other = chat(part(clear), media_io_kwargs=blue)
    assert (await set_so.render(other)).json()["features"] == (await asked.render(other)).json()["features"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"image": {"rgba_background_color": "red"}}, "rgba_background_color"),
        ({"image": {"mode": "RGB"}}, "media_io_kwargs.image.mode"),
        ({"sound": {}}, "'sound' is not taken"),
    ],
)
def test_a_server_does_not_start_with_settings_that_are_none(
    services: dict[str, Service], kwargs: dict[str, Any], message: str
) -> None:
    served = services["qwen2_5_vl"].assets
    with pytest.raises(ModelLoadError, match=rf"--media-io-kwargs.*{message}"):
        Service(settings_for(served.directory, media_io_kwargs=kwargs), served)


@pytest.mark.parametrize("name", ["nope", "fps", "crop_to_patches"])
def test_a_server_does_not_start_with_settings_that_its_processor_does_not_have(
    services: dict[str, Service], name: str
) -> None:
    served = services["qwen2_5_vl"].assets
    with pytest.raises(ModelLoadError, match=f"--mm-processor-kwargs: '{name}' is not known.*max_pixels"):
        Service(settings_for(served.directory, mm_processor_kwargs={name: 1}), served)


async def test_an_image_is_kept_for_each_way_of_processing_it(serve: Any) -> None:
    server = await serve(trust_request_mm_kwargs=True)
    data = file(picture(200, 150, seed=31))
    asked: list[dict[str, Any]] = [{}, {"max_pixels": 3136}, {"max_pixels": 6272}, {"min_pixels": 50176}]
    bodies = [chat(part(data), text("?"), mm_processor_kwargs=kwargs) for kwargs in asked]
    fresh = [(await server.render(body)).json() for body in bodies]
    again = [(await server.render(body)).json() for body in bodies]
    counts = [answer["features"]["mm_placeholders"]["image"][0]["length"] for answer in fresh]
    assert [answer["features"] for answer in again] == [answer["features"] for answer in fresh]
    assert counts == [35, 2, 6, 70]
    for body, answer in zip(bodies, fresh, strict=True):
        counted = await server.client.post("/tokenize", json=body)
        assert counted.json()["count"] == len(answer["token_ids"])
    metrics = (await server.client.get("/metrics")).text
    assert 'render_tier_images_total{result="kept"} 4.0' in metrics


async def test_no_other_file_has_the_key_of_an_image(serve: Any) -> None:
    """Who knows its hash, and what was said of it, has not got the image."""
    server = await serve(trust_request_mm_kwargs=True)
    data, said = file(picture(64, 48, seed=32)), {"max_pixels": 3136}
    assert (await server.render(chat(part(data), mm_processor_kwargs=said))).status_code == 200
    forged = ImageOptions(said).digest + blake3(data).digest()
    status, error = await server.error(chat(part(forged)))
    assert (status, "not a readable image" in error["message"]) == (400, True)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"mm_processor_kwargs": {"max_pixels": 5000}},
            *("mm_processor_kwargs.max_pixels", "a whole number from 1 to 4096"),
        ),
        (
            {"mm_processor_kwargs": {"size": {"longest_edge": 3136}}},
            *("mm_processor_kwargs", "cannot be processed with size"),
        ),
        ({"mm_processor_kwargs": {"patch_size": 7}}, "mm_processor_kwargs.patch_size", "not known"),
        ({"media_io_kwargs": {"image": {"image_mode": "L"}}}, "media_io_kwargs.image.image_mode", "RGB"),
        (
            {"mm_processor_kwargs": {"min_pixels": 4000}},
            *("messages.0.content.0.image_url", "would become 4704 pixels"),
        ),
    ],
)
async def test_what_trusted_requests_may_not_say(
    serve: Any, fields: dict[str, Any], param: str, message: str
) -> None:
    server = await serve(trust_request_mm_kwargs=True, max_image_pixels=4096)
    status, error = await server.error(chat(part(SMALL), text("?"), **fields))
    assert (status, error["param"]) == (400, param)
    assert message in error["message"]


async def test_untrusted_requests_say_nothing_of_their_images(serve: Any) -> None:
    """And nothing is fetched for them."""
    server = await serve(allowed_media_networks=("127.0.0.0/8",))
    async with origin(lambda path: ok(SMALL)) as (port, heads):
        remote = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/a.png"}}
        for name, value in (
            ("mm_processor_kwargs", {"max_pixels": 3136}),
            ("media_io_kwargs", {"image": {}}),
        ):
            for path in (PATH, f"{PATH}?explain=true", "/tokenize"):
                response = await server.client.post(path, json=chat(remote, **{name: value}))
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, name)
                assert "--trust-request-mm-kwargs" in error["message"]
    assert not heads


def named(uuid: str, data: bytes | None = None) -> dict[str, Any]:
    if data is None:
        return {"type": "image_url", "image_url": None, "uuid": uuid}
    return part(data, uuid=uuid)


async def test_an_image_that_was_sent_is_meant_by_its_name_alone(serve: Any) -> None:
    server = await serve(trust_request_mm_kwargs=True)
    few = {"mm_processor_kwargs": {"max_pixels": 3136}}
    sent = (await server.render(chat(named("a", SMALL), text("?")))).json()
    for parts in ((named("a"), text("?")), ({"image_url": {"url": None}, "uuid": "a"}, text("?"))):
        assert (await server.render(chat(*parts))).json()["features"] == sent["features"]
    alone = await server.render(chat(named("a")))
    assert alone.json()["features"]["kwargs_data"] == sent["features"]["kwargs_data"]
    counted = await server.client.post("/tokenize", json=chat(named("a"), text("?")))
    assert counted.json()["tokens"] == sent["token_ids"]
    # Processed in another way it is another item.
    status, error = await server.error(chat(named("a"), **few))
    assert (status, error["type"], error["param"]) == (
        400,
        "ImageRequiredError",
        "messages.0.content.0.image_url",
    )
    assert (await server.render(chat(named("a", SMALL), **few))).status_code == 200
    assert (await server.render(chat(named("a"), **few))).status_code == 200


async def test_nobody_is_shown_anothers_image_by_its_name(serve: Any) -> None:
    """Names are those of the client, as the orchestrator says, and of the request's caches."""
    server = await serve()
    owners: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, {}),
        ({"X-Media-Scope": "one"}, {}),
        ({"X-Media-Scope": "other"}, {}),
        ({}, {"cache_salt": "one"}),
        ({"X-Media-Scope": "one"}, {"cache_salt": "one"}),
    ]
    hashes: set[str] = set()
    for number, (headers, fields) in enumerate(owners):
        sent = chat(named("secret", file(picture(64, 48, seed=number))), **fields)
        for theirs, other in owners[number:]:
            asked = chat(named("secret"), **other)
            assert (await server.client.post(PATH, json=asked, headers=theirs)).status_code == 400
        reply = await server.client.post(PATH, json=sent, headers=headers)
        # Engines, too, would show one's image for the other's.
        (mm_hash,) = reply.json()["features"]["mm_hashes"]["image"]
        assert mm_hash not in hashes
        hashes.add(mm_hash)
        assert (
            await server.client.post(PATH, json=chat(named("secret"), **fields), headers=headers)
        ).status_code == 200


async def test_a_name_stands_for_one_image(serve: Any) -> None:
    """Engines would show the first, whose tokens may be more."""
    server = await serve(image_names=2)
    assert (await server.render(chat(named("a", SMALL)))).status_code == 200
    other = chat(named("a", file(picture(90, 60))))
    status, error = await server.error(other)
    assert (status, error["param"]) == (400, "messages.0.content.0.image_url")
    assert "another image was sent under its uuid" in error["message"]
    broken = file(picture(300, 200), "JPEG")[:2000]
    assert (await server.error(chat(named("b", broken))))[0] == 400
    assert (await server.render(chat(named("b", SMALL), named("c", SMALL)))).status_code == 200
    assert (await server.render(other)).status_code == 200  # as "a" is forgotten


async def test_a_client_may_send_an_empty_name_with_all_of_its_images(serve: Any) -> None:
    server = await serve()
    hashes = []
    for image in (SMALL, file(picture(90, 60))):
        plain = (await server.render(chat(part(image)))).json()["features"]["mm_hashes"]
        unnamed = (await server.render(chat(named("", image)))).json()["features"]["mm_hashes"]
        assert unnamed == plain
        hashes.append(plain)
    assert hashes[0] != hashes[1]


async def test_a_request_that_is_refused_gives_no_name_away(serve: Any) -> None:
    server = await serve()
    other = file(picture(90, 60))
    twice = chat(named("a", SMALL), named("a", other))
    status, error = await server.error(twice)
    assert (status, error["param"]) == (400, "messages.0.content.1.image_url")
    assert (await server.error(chat(named("b", SMALL), text("<|image_pad|>"))))[0] == 400
    for name in "ab":
        assert (await server.error(chat(named(name))))[1]["type"] == "ImageRequiredError"
        assert (await server.render(chat(named(name, other)))).status_code == 200
    assert (await server.render(chat(named("c", SMALL), named("a")))).status_code == 200
    assert (await server.error(chat(named("d", SMALL), named("a", SMALL))))[0] == 400
    assert (await server.error(chat(named("d"))))[1]["type"] == "ImageRequiredError"


async def test_a_request_may_mean_an_image_twice_that_it_brings_once(serve: Any) -> None:
    server = await serve()
    for number, parts in enumerate(([SMALL, None], [None, SMALL])):
        asked = chat(*(named(f"a{number}", data) for data in parts), text("?"))
        counted = await server.client.post("/tokenize", json=asked)
        answer = await server.render(asked)
        assert answer.json()["token_ids"] == counted.json()["tokens"]
        both = await server.render(chat(named(f"a{number}", SMALL), named(f"a{number}", SMALL), text("?")))
        assert answer.json()["features"] == both.json()["features"]


async def test_an_image_that_is_not_kept_is_asked_for(serve: Any) -> None:
    server = await serve(image_cache_bytes=0)
    assert (await server.render(chat(named("a", SMALL)))).status_code == 200
    assert (await server.error(chat(named("a"))))[1]["type"] == "ImageRequiredError"


async def test_an_image_is_processed_once(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve()
    preparation, processed = server.app.runtime.service.images.vision.preparation, []
    prepare = preparation.prepare
    monkeypatch.setattr(preparation, "prepare", lambda loaded: processed.append(1) or prepare(loaded))
    body = chat(part(file(picture(70, 50, seed=77))), text("?"))
    first, *others = await asyncio.gather(*(server.render(body) for _ in range(4)))
    again = await server.render(body)
    for other in (*others, again):
        assert other.json()["features"] == first.json()["features"]
    metrics = (await server.client.get("/metrics")).text
    assert len(processed) == 1
    assert 'render_tier_images_total{result="kept"}' in metrics
    assert "render_tier_image_memory_bytes 0.0" in metrics


def test_fingerprint_depends_on_what_becomes_of_images(services: dict[str, Service]) -> None:
    service = services["qwen2_5_vl"]
    settings = settings_for(service.assets.directory, served_model_name=("m",))
    base = load_service(settings).assets

    def fingerprint(**changes: Any) -> str:
        return Service(settings.model_copy(update=changes), base).assets.fingerprint

    assert fingerprint() == fingerprint(image_cache_bytes=0)
    others = {
        fingerprint(mm_processor_kwargs={"max_pixels": 3136}),
        fingerprint(media_io_kwargs={"image": {"rgba_background_color": [0, 0, 0]}}),
        fingerprint(mm_device_do_normalize=False),
        fingerprint(mm_device_do_normalize=False, dtype="float16"),
    }
    assert len(others - {fingerprint()}) == 4


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        (chat(text("a"), part(b"nonsense")), 400, "messages.0.content.1.image_url", "not a readable image"),
        (
            chat({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}),
            *(400, "messages.0.content.0.image_url", "not on the public network"),
        ),
        (
            chat({"type": "image_url", "image_url": {"url": "http://name.invalid/x"}}),
            *(422, "messages.0.content.0.image_url", "cannot be resolved"),
        ),
        (
            chat({"type": "image_url", "image_url": {"url": f"{LOCAL}/etc/hostname"}}),
            *(400, "messages.0.content.0.image_url", "allowed-local-media-path"),
        ),
        (
            chat({"type": "image_url", "image_url": {"url": None}, "uuid": "x"}),
            *(400, "messages.0.content.0.image_url", "no image is kept under this uuid; send the image"),
        ),
        (chat({"type": "image_url", "image_url": {}}), 400, "messages.0.content.0.image_url", "`url`"),
        (
            chat({"type": "audio_url", "audio_url": {"url": "data:,"}}),
            *(400, "messages.0.content.0", "'audio_url' parts are not supported"),
        ),
        (chat(part(SMALL), text("see <|image_pad|>")), 400, "messages", "taken for the place of an image"),
        (chat(part(SMALL), truncate_prompt_tokens=3), 400, "messages", "0 places for images"),
        (chat(part(SMALL), model="other"), 404, "model", "does not exist"),
        (
            chat(part(file(picture(2000, 9)))),
            *(400, "messages.0.content.0.image_url", "200 times longer"),
        ),
        (chat(part(SMALL), continuation={"prompt_token_ids": [1 << 40], "output_token_ids": []}),
         400, "continuation.prompt_token_ids", "out of vocabulary"),
    ],
)  # fmt: skip
async def test_refused(serve: Any, body: Any, status: int, param: str, message: str) -> None:
    server = await serve()
    answered, error = await server.error(body)
    assert (answered, error["param"]) == (status, param)
    assert message in error["message"]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
async def test_prompts_are_counted_without_processing_an_image(
    serve: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve(name)
    bodies = [corpus()[each] for each in ("several messages", "line breaks around", "two in a row")]
    bodies += [chat(text("?"), part(data)) for data in every_kind().values()]
    rendered = [(await server.render(body)).json()["token_ids"] for body in bodies]
    preparation = server.app.runtime.service.images.vision.preparation
    monkeypatch.setattr(preparation, "prepare", None)
    monkeypatch.setattr(preparation, "cache", ItemCache(0))
    for body, expected in zip(bodies, rendered, strict=True):
        answer = (await server.client.post("/tokenize", json={"messages": body["messages"]})).json()
        assert (answer["tokens"], answer["count"]) == (expected, len(expected))


async def test_anthropic_clients_count_tokens_of_images(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve()
    data = file(picture(640, 480), "JPEG")
    source = {"type": "base64", "media_type": "image/jpeg", "data": b64encode(data).decode()}
    message = {"role": "user", "content": [{"type": "image", "source": source}, text("What is it?")]}
    asked = {"model": "m", "system": "Be brief.", "messages": [message]}
    rendered = (await server.client.post("/v1/messages/render", json={**asked, "max_tokens": 8})).json()
    monkeypatch.setattr(server.app.runtime.service.images.vision.preparation, "prepare", None)
    answer = (await server.client.post("/v1/messages/count_tokens", json=asked)).json()
    assert answer["input_tokens"] == len(rendered["token_ids"]) > 300


async def test_counting_refuses_what_rendering_does(serve: Any) -> None:
    server = await serve(max_model_len=64)
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(b"nonsense").decode()}
    unreadable = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
    }
    response = await server.client.post("/v1/messages/count_tokens", json=unreadable)
    assert (response.status_code, response.json()["error"]["param"]) == (
        400,
        "messages.0.content.0.image_url",
    )
    response = await server.client.post("/tokenize", json=chat(part(SMALL), text("see <|image_pad|>")))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    response = await server.client.post("/tokenize", json=chat(part(SMALL), model="other"))
    assert response.status_code == 404


async def test_an_explanation_has_the_prompt_that_is_rendered(serve: Any) -> None:
    server = await serve()
    body = chat(part(SMALL), text("What is it?"), request_id="a")
    expected = (await server.render(body)).json()
    answer = (await server.client.post(f"{PATH}?explain=true", json=body)).json()
    assert answer["request"] == expected
    assert [token["id"] for token in answer["tokens"]] == expected["token_ids"]
    assert answer["prompt_tokens"] == len(expected["token_ids"])
    assert answer["prompt"].count("<|image_pad|>") == 1


async def test_details_of_images_are_taken_without_effect(serve: Any) -> None:
    server = await serve()
    plain = (await server.render(chat(part(SMALL), text("?")))).json()
    url = part(SMALL)["image_url"]["url"]
    low = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    answer = (await server.render(chat(low, text("?")))).json()
    assert answer["features"] == plain["features"]
    assert answer["warnings"] == [
        "messages.0.content.0.image_url.detail has no effect: the model has one way of showing images"
    ]
    assert "warnings" not in plain


async def test_messages_and_responses_render_as_their_chat_does(serve: Any) -> None:
    server = await serve()
    url = part(SMALL)["image_url"]["url"]
    asked = {"model": "m", "max_tokens": 8}
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    blocks = [{"type": "image", "source": source}, text("What is it?")]
    items = [
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_text", "text": "What is it?"},
    ]
    expected = (await server.render(chat(part(SMALL), text("What is it?")))).json()
    for path, body in (
        ("/v1/messages/render", {"messages": [{"role": "user", "content": blocks}], **asked}),
        ("/v1/responses/render", {"input": [{"type": "message", "role": "user", "content": items}]}),
    ):
        answer = (await server.client.post(path, json=body)).json()
        assert answer["token_ids"] == expected["token_ids"], path
        assert answer["features"] == expected["features"], path


async def test_limits(serve: Any) -> None:
    server = await serve(limit_mm_per_prompt={"image": 1}, max_image_bytes=4096, max_image_pixels=2000)
    status, error = await server.error(chat(part(SMALL), part(SMALL)))
    assert (status, error["param"]) == (400, "image")
    assert "At most 1 image(s)" in error["message"]
    noise = file(picture(64, 30), "BMP")
    assert len(noise) > 4096
    assert "larger than 4096 bytes" in (await server.error(chat(part(noise))))[1]["message"]
    flat = file(picture(64, 48).resize((1, 1)).resize((64, 48)))
    assert "at most 2000 are allowed" in (await server.error(chat(part(flat))))[1]["message"]


async def test_a_prompt_of_more_images_than_may_wait_for_a_thread_is_rendered(serve: Any) -> None:
    server = await serve(max_queue=2)
    body = chat(*(part(file(picture(30 + number, 30))) for number in range(12)))
    assert (await server.render(body)).status_code == 200
    assert (await server.client.post("/tokenize", json=body)).status_code == 200


async def test_a_prompt_is_cut_with_its_images_in_it(serve: Any) -> None:
    """To as many as fit, too; what is cut off an image is an error that names the limit."""
    server = await serve(max_model_len=120)
    large, words = part(file(picture(300, 200))), text("word " * 60)
    whole = await server.error(chat(words, large, text("?")))
    assert (whole[0], whole[1]["param"]) == (400, "input_tokens")
    answer = (await server.render(chat(words, large, text("?"), truncate_prompt_tokens=-1))).json()
    assert len(answer["token_ids"]) == 119
    place = answer["features"]["mm_placeholders"]["image"][0]
    held = answer["token_ids"][place["offset"] : place["offset"] + place["length"]]
    assert len(held) > 1
    assert len(set(held)) == 1
    status, error = await server.error(chat(large, text("?"), truncate_prompt_tokens=20))
    assert (status, error["param"]) == (400, "truncate_prompt_tokens")
    assert "truncate_prompt_tokens=20 would cut off an image, which is at tokens" in error["message"]


async def test_prompt_with_images_must_fit(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not is not even decoded."""
    server = await serve(max_model_len=64)
    monkeypatch.setattr(ImagePreparation, "prepare", None)
    status, error = await server.error(chat(part(file(picture(640, 480)))))
    assert (status, error["param"]) == (400, "input_tokens")


async def test_images_beyond_what_a_prompt_holds_are_not_looked_at(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of a few bytes may announce more tokens than there is memory for."""
    server = await serve(max_model_len=100)
    loaded, load = [], ImagePreparation.load

    def watched(*arguments: Any) -> Any:
        loaded.append(1)
        return load(*arguments)

    monkeypatch.setattr(ImagePreparation, "load", watched)
    large = [part(file(picture(320, 240)) + bytes([number])) for number in range(50)]
    status, error = await server.error(chat(*large))
    assert (status, error["param"]) == (400, "input_tokens")
    assert "at least 101 input tokens" in error["message"]
    assert len(loaded) < 5


async def test_responses_say_how_their_images_are_processed(serve: Any) -> None:
    server = await serve(trust_request_mm_kwargs=True)
    few = {"mm_processor_kwargs": {"max_pixels": 3136}}
    url = part(SMALL)["image_url"]["url"]
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "?"}]
    asked = {"input": [{"type": "message", "role": "user", "content": content}], **few}
    answer = (await server.client.post("/v1/responses/render", json=asked)).json()
    assert answer["features"] == (await server.render(chat(part(SMALL), text("?"), **few))).json()["features"]


async def test_files_are_read_below_the_directory(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(SMALL)
    server = await serve(allowed_local_media_path=str(tmp_path))
    by_file = await server.render(
        chat({"type": "image_url", "image_url": {"url": f"{LOCAL}{tmp_path}/a.png"}})
    )
    by_data = await server.render(chat(part(SMALL)))
    assert by_file.json()["features"] == by_data.json()["features"]


async def test_images_are_fetched_where_their_network_is_allowed(serve: Any) -> None:
    server = await serve(allowed_media_networks=("127.0.0.0/8",), image_cache_bytes=0)
    by_data = (await server.render(chat(part(SMALL), part(SMALL)))).json()
    async with origin(lambda path: ok(SMALL if path == "/a.png" else b"<html>")) as (port, heads):
        url = f"http://127.0.0.1:{port}"
        remote = [{"type": "image_url", "image_url": {"url": f"{url}/a.png"}}] * 2
        assert (await server.render(chat(*remote))).json()["features"] == by_data["features"]
        page = {"type": "image_url", "image_url": {"url": f"{url}/page"}}
        status, error = await server.error(chat(text("a"), page))
    assert (status, error["param"]) == (400, "messages.0.content.1.image_url")
    assert len(heads) == 3


async def test_requests_without_images_wait_for_none(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve(image_cache_bytes=0)
    preparation = server.app.runtime.service.images.vision.preparation
    go_on, prepare = threading.Event(), preparation.prepare

    def held(loaded: Any) -> Any:
        go_on.wait(60)
        return prepare(loaded)

    monkeypatch.setattr(preparation, "prepare", held)
    waiting = [
        asyncio.create_task(server.render(chat(part(file(picture(50, 40, seed=seed)))))) for seed in range(20)
    ]
    answers = [await server.render(chat(text("Hi"))) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not any(task.done() for task in waiting)
    go_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


async def test_pixels_normalized_for_engines_that_do_not(serve: Any) -> None:
    server = await serve(mm_device_do_normalize=False)
    answer = comparable(200, (await server.render(chat(part(SMALL)))).json())
    tensor = answer["features"]["kwargs_data"]["image"][0]["pixel_values"]["tensor"]
    assert tensor[:2] == ["bfloat16", [16, 1176]]


async def test_memory_of_requests_in_progress_is_bounded(serve: Any) -> None:
    """Fifty requests at once with images that are not seen twice, where there is room for few."""
    server = await serve(image_item_memory_bytes=1 << 20, image_cache_bytes=0)
    items = server.app.runtime.images.items
    most, take = 0, items.take

    async def watched(amount: int) -> None:
        nonlocal most
        await take(amount)
        most = max(most, items.held)

    items.take = watched
    bodies = [chat(part(file(picture(120, 90, seed=seed)))) for seed in range(50)]
    answers = await asyncio.gather(*map(server.render, bodies))
    assert {answer.status_code for answer in answers} == {200}
    assert 0 < most <= items.total
    assert len({json.dumps(answer.json()["features"]["mm_hashes"]) for answer in answers}) == 50


async def test_memory_is_held_until_the_last_thread_has_left_an_image(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that ends at one image leaves no others behind: those that wait are not processed."""
    server = await serve(image_cache_bytes=0, image_workers=2)
    intake = server.app.runtime.images
    go_on, begun, prepare = threading.Event(), [], ImagePreparation.prepare

    def held(self: Any, loaded: Any) -> Any:
        begun.append(loaded)
        if loaded.data != broken:
            go_on.wait(60)
        return prepare(self, loaded)

    whole = [file(picture(50, 40, seed=seed)) for seed in range(20)]
    broken = file(picture(400, 300))[:-5000]
    monkeypatch.setattr(ImagePreparation, "prepare", held)
    asking = asyncio.create_task(server.error(chat(*map(part, [whole[0], broken, *whole[1:]]))))
    # A thread that has left the broken one may have begun another before the end of the request is known.
    while len(begun) < 2 or server.app.runtime.pending > 2:
        await asyncio.sleep(0.01)
    assert intake.files.held > 0
    assert intake.items.held > 0
    assert not asking.done()
    go_on.set()
    status, error = await asking
    assert (status, error["param"]) == (400, "messages.0.content.1.image_url")
    assert len(begun) <= 3


async def test_more_than_there_is_memory_for(serve: Any) -> None:
    server = await serve(image_item_memory_bytes=1 << 20)
    status, error = await server.error(chat(part(file(picture(600, 600), "JPEG"))))
    assert status == 413
    assert "1048576 are allowed" in error["message"]


async def test_gemma_gets_line_breaks_as_its_tokenizer_joins_them(serve: Any) -> None:
    server = await serve("gemma3")
    answer = (await server.render(chat(text("See:\n"), part(SMALL), text("So?")))).json()
    (where,) = answer["features"]["mm_placeholders"]["image"]
    inside = answer["token_ids"][where["offset"] : where["offset"] + where["length"]]
    assert set(inside) == {262144}
    assert len(inside) == 256


def test_processor_that_is_not_known(services: dict[str, Service]) -> None:
    served = services["qwen2_5_vl"].assets
    settings = settings_for(served.directory, mm_processor_kwargs={"do_resize": False})
    with pytest.raises(ModelLoadError, match=r"do_resize=False.*--limit-mm-per-prompt"):
        Service(settings, served)
    as_text = Service(settings.model_copy(update={"limit_mm_per_prompt": {"image": 0}}), served)
    with pytest.raises(BadRequest, match="not a multimodal model"):
        as_text.renderer.chat(ChatCompletionRequest.parse(chat(part(SMALL))))


def test_text_models_load_nothing_of_it(qwen3_dir: Path) -> None:
    program = (
        "import sys\n"
        "from render_tier.server.service import Service\n"
        "from render_tier.server import runtime, endpoints\n"
        "from tests.support.render_app import settings_for\n"
        "from pathlib import Path\n"
        f"Service.load(settings_for(Path({str(qwen3_dir)!r}), max_model_len=4096))\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'numpy', 'PIL', 'blake3'}, loaded\n"
        "assert not [name for name in sys.modules if name.startswith('render_tier.multimodal')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3], timeout=120)


async def test_a_large_piece_of_a_reply_is_sent_as_it_is() -> None:
    sent: list[Any] = []
    item = bytes(100)

    async def send(message: Any) -> None:
        assert not over
        sent.append(message)

    over: list[bool] = []
    await Reply(200, b'["', rest=(item, b'"]'), on_sent=lambda: over.append(True)).send(send)
    start, *bodies = sent
    assert (b"content-length", b"104") in start["headers"]
    assert [message["body"] for message in bodies] == [b'["', item, b'"]', b""]
    assert bodies[1]["body"] is item
    assert [message.get("more_body", False) for message in bodies] == [True, True, True, False]
    assert over


async def test_a_reply_says_whether_images_are_named_by_their_contents(serve: Any) -> None:
    server = await serve()
    one = part(SMALL)
    for parts, said in (([one], "content"), ([one, {**one, "uuid": "x"}], None), ([text("Hi")], None)):
        assert (await server.render(chat(*parts))).headers.get("x-item-names") == said


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_images_that_are_kept(serve: Any, coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent from where they are kept, within the same memory as others."""
    server = await serve(image_item_memory_bytes=1 << 20, compression_min_bytes=1)
    body = chat(part(file(picture(140, 112), "JPEG")), part(SMALL), text("Which one?"), request_id="a")
    server.client.headers["accept-encoding"] = coding
    first = await server.render(body)
    assert first.status_code == 200
    images = server.app.runtime.images
    takes: list[int] = []
    take = images.items.take

    async def watched(amount: int) -> None:
        await take(amount)
        takes.append(images.items.held)

    packed: list[int] = []
    compress = ReplyCompression.compressed

    def compressed(*args: Any) -> Any:
        packed.append(images.items.held)
        return compress(*args)

    images.items.take = watched
    monkeypatch.setattr(ReplyCompression, "compressed", compressed)
    again = await asyncio.gather(*(server.render(body) for _ in range(8)))
    assert [answer.json() for answer in again] == [first.json()] * 8
    assert all("content-encoding" not in answer.headers for answer in again) == (coding == "identity")
    assert len(takes) == 8
    assert len(packed) == (0 if coding == "identity" else 8)
    assert all(packed), "memory is held when a reply is packed"
    assert 0 < max(takes) <= images.items.total
    assert images.files.held == 0


async def test_images_that_the_caller_has_are_named(serve: Any) -> None:
    server = await serve()
    other = part(file(picture(90, 70, seed=3)))
    body = chat(part(SMALL), {**other, "uuid": "mine"}, other, text("?"), request_id="a")
    whole = (await server.render(body)).json()
    names = whole["features"]["mm_hashes"]["image"]
    for known, left_out in ((names[:1], [0]), (names, [0, 2]), (["0" * 64, ""], []), (names[1:2], [])):
        server.client.headers["x-known-items"] = ",".join(name[:16] for name in known)
        expected = json.loads(json.dumps(whole))
        for index in left_out:
            expected["features"]["kwargs_data"]["image"][index] = None
        # From what is kept, and with an image that is not.
        assert (await server.render(body)).json() == expected
    server.client.headers["x-known-items"] = names[0][:16]
    without_names = chat(part(SMALL), other)
    data = (await server.render(without_names)).json()["features"]["kwargs_data"]["image"]
    assert [each is None for each in data] == [True, False]
