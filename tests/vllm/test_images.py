"""A chat with images, or videos, over four hops says what one vLLM says that is given the files themselves:
our pixels, hashes and places, a prefill on one engine, and a decode on another that gets the KV over NIXL.
What the prefill engine reports of its cache is found again for the same images. So it is where engines are
sent an image once and its name afterwards, and where a third engine runs the vision part, and the prefill
engine gets no pixels.

The engines have a tokenizer (`--enable-scale-out`): a vLLM with `--tokens-only` takes no model with vision.
They draw the weights of their tiny models, of the families that `SEEING_FAMILIES` names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.demo import vllm_cpu
from tests.support import mistral_models, seeing_families, vllm
from tests.support.images import data_url, file, picture
from tests.support.middlebox import Middlebox
from tests.support.pd_stack import FREE, IDLE, LEASE_OVER_WITHIN, PATIENT, becomes_free, metric, stranded
from tests.support.processes import ServerProcess, free_port, orchestrator_server, render_tier_server
from tests.support.video_corpus import file_url, film, frames_url, part
from tests.vllm.torchvision_reference import python_path

NAME = "eye"
FAMILIES = os.environ.get("SEEING_FAMILIES", "qwen2_5_vl").split()
OWN_FORMAT = "mistral_format"
"""A family of its own here: Pixtral as engines load it by params.json."""
FLAGS = {OWN_FORMAT: ("--tokenizer-mode", "mistral", "--config-format", "mistral")}
"""Of a family's engines."""
DRAWN = ("--load-format", "drawn", "--worker-extension-cls", "tests.vllm.drawn_weights.DrawnWeights")


@dataclass(frozen=True)
class Stack:
    family: str
    prefill: ServerProcess
    decode: ServerProcess
    """Answers chats of its own too, with its own processor of images."""
    orchestrator: ServerProcess
    encoder: ServerProcess
    encoding: ServerProcess
    """Another orchestrator before the same engines, with the encoder."""
    naming: ServerProcess
    """Another one, which sends an image once."""
    ways: tuple[Middlebox, Middlebox]
    """Of that one, to prefill and to decode."""


def embeddings(role: str, directory: Path) -> tuple[str, str]:
    """Flags of an engine that writes what it makes of images to ``directory``, or reads it there."""
    config = {
        "ec_connector": "ECExampleConnector",
        "ec_role": role,
        "ec_connector_extra_config": {"shared_storage_path": str(directory)},
    }
    return "--ec-transfer-config", json.dumps(config)


def engine(model: Path, role: str, *more: str, log_dir: Path) -> ServerProcess:
    options = [option for option in vllm_cpu.PAIR_OPTIONS if option != "--tokens-only"]
    process = vllm.server(
        f"vllm-{role}",
        *("serve", model),
        *("--served-model-name", NAME, *options, "--enable-scale-out"),
        "--trust-remote-code",  # which InternVL's own configuration is
        # What the largest image would take is not measured: minutes on a CPU.
        *("--skip-mm-profiling", "--max-model-len", "8192", *DRAWN, *vllm.DEVELOPMENT_OPTIONS, *more),
        log_dir=log_dir,
    )
    process.env |= vllm_cpu.side_channel(free_port()) | vllm.DEVELOPMENT | {"PYTHONPATH": python_path()}
    return process


@pytest.fixture(scope="module", params=FAMILIES)
def stack(
    request: pytest.FixtureRequest,
    model_dir: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    log_dir = tmp_path_factory.mktemp(request.param)
    if request.param == OWN_FORMAT:
        model = mistral_models.lay_out(model_dir("tekken_240911"), log_dir / NAME)
    else:
        model = seeing_families.lay_out(request.param, log_dir / NAME)
    flags = FLAGS.get(request.param, ())
    ports = free_port(), free_port()
    prefill = engine(
        model,
        "prefill",
        *("--kv-transfer-config", vllm_cpu.transfer_config("prefill"), *vllm.publishing(*ports)),
        *embeddings("ec_consumer", log_dir / "embeddings"),
        *flags,
        log_dir=log_dir,
    )
    decode = engine(
        model,
        "decode",
        *("--kv-transfer-config", vllm_cpu.transfer_config("decode"), "--no-enable-prefix-caching"),
        *flags,
        log_dir=log_dir,
    )
    producer = embeddings("ec_producer", log_dir / "embeddings")
    encoder = engine(model, "encode", *producer, *flags, log_dir=log_dir)
    with ExitStack() as exits:
        for process in (prefill, decode, encoder):
            exits.callback(process.stop)
        with ThreadPoolExecutor(2) as starts:
            list(starts.map(vllm.start, (prefill, decode)))
        vllm.start(encoder)
        render = exits.enter_context(
            render_tier_server(model, "--served-model-name", NAME, "--dtype", "float32", log_dir=log_dir)
        )
        members = ("--render", render.url, "--prefill", prefill.url, "--decode", decode.url)
        endpoint, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        config = log_dir / "orchestrator.json"
        config.write_text(
            json.dumps(
                PATIENT
                | {"kv_events": {"endpoints": {prefill.url: endpoint}, "replay": {prefill.url: replay}}}
            )
        )
        orchestrator = exits.enter_context(orchestrator_server(*members, "--config", config, log_dir=log_dir))
        config = log_dir / "encoding.json"
        config.write_text(json.dumps(PATIENT | {"policy": {"encoded_images": "metadata"}}))
        encoding = exits.enter_context(
            orchestrator_server(
                *(*members, "--encode", encoder.url, "--config", config), log_dir=log_dir, name="encoding"
            )
        )
        ways = exits.enter_context(Middlebox(prefill)), exits.enter_context(Middlebox(decode))
        config = log_dir / "naming.json"
        config.write_text(json.dumps(PATIENT | {"policy": {"known_images": "named"}}))
        naming = exits.enter_context(
            orchestrator_server(
                *("--render", render.url, "--prefill", ways[0].url, "--decode", ways[1].url),
                *("--config", config),
                log_dir=log_dir,
                name="naming",
            )
        )
        yield Stack(request.param, prefill, decode, orchestrator, encoder, encoding, naming, ways)


def shown(*sizes: tuple[int, int], seed: int = 0) -> list[dict[str, Any]]:
    urls = [data_url(file(picture(*size, seed=seed + n))) for n, size in enumerate(sizes)]
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]


def chat(*parts: dict[str, Any], **options: Any) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "What is to be seen?"}]
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 12,
        "return_token_ids": True,
    } | options


def said(server: ServerProcess, body: dict[str, Any]) -> tuple[list[int], list[list[int]], list[str]]:
    """The prompt's IDs, and those and the text of each choice."""
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=240, trust_env=False)
    assert response.status_code == 200, response.text
    answer = response.json()
    choices = answer["choices"]
    # A character that the output breaks off in is not shown by vLLM's own chat.
    texts = [choice["message"]["content"].rstrip("\ufffd") for choice in choices]
    return answer["prompt_token_ids"], [choice["token_ids"] for choice in choices], texts


ONE = shown((448, 336))
OTHER = shown((448, 336), seed=7)
"""Of 192 tokens, more than a block of an engine's KV."""
CHATS: dict[str, dict[str, Any]] = {
    "one image": chat(*ONE),
    "another of the same size": chat(*OTHER),
    "two of several sizes": chat(*shown((300, 200), (50, 90))),
    "the same one twice": chat(*ONE, *ONE),
    "of a conversation": chat()
    | {
        "messages": [
            {"role": "user", "content": [*ONE, {"type": "text", "text": "What is it?"}]},
            {"role": "assistant", "content": "A picture."},
            {"role": "user", "content": [{"type": "text", "text": "And this?"}, *OTHER]},
        ]
    },
    "none": chat(),
}
VIDEOS = {
    "a video": chat(part(frames_url(film(6, 196, 140)))),
    "a video's file beside an image": chat(part(file_url("h264.mp4")), *ONE),
}
SHOWN_VIDEOS = ("qwen2_5_vl", "qwen3_vl")
PICTURED = ("mistral3", "pixtral", OWN_FORMAT)
"""Families whose engines are sent pictures, whatever they have been sent before, and have no encoders."""


def pulled(stack: Stack) -> float:
    """Prompt tokens that the decode engine got from the prefill engine."""
    return metric(stack.decode, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


def test_images_over_four_hops_equal_one_engine(stack: Stack) -> None:
    answers = {}
    for name, body in (CHATS | (VIDEOS if stack.family in SHOWN_VIDEOS else {})).items():
        before = pulled(stack)
        answers[name] = said(stack.orchestrator, body)
        assert pulled(stack) - before >= len(answers[name][0]) - 1, f"{name}: the decode engine got the KV"
        assert answers[name] == said(stack.decode, body), name
    outputs = {name: answer[1] for name, answer in answers.items()}
    assert answers["one image"][0] == answers["another of the same size"][0], "the IDs are the same"
    assert outputs["one image"] != outputs["another of the same size"], "what they show is not"
    # An image that has been seen is taken from caches, and the other one still is another.
    for name in ("one image", "another of the same size"):
        assert said(stack.orchestrator, CHATS[name]) == answers[name]
    predictions = "pd_kv_index_predictions_total"
    assert metric(stack.orchestrator, predictions, role="prefill", result="held") >= 2
    assert metric(stack.orchestrator, predictions, role="prefill", result="drifted") == 0
    assert stranded(stack.orchestrator) == {}
    becomes_free((stack.orchestrator, IDLE), (stack.prefill, FREE), (stack.decode, FREE))


def sent(way: Middlebox) -> list[list[bool]]:
    """Which images of each leg since then were more than a name; by its size on the wire, too."""
    legs = []
    for leg in way.requests:
        whole = [data is not None for data in leg["features"]["kwargs_data"]["image"]]
        assert (len(json.dumps(leg)) > 100_000) == any(whole)
        legs.append(whole)
    way.reset()
    return legs


def assert_pictures_are_sent(stack: Stack) -> None:
    for _ in range(2):
        assert said(stack.naming, CHATS["one image"]) == said(stack.decode, CHATS["one image"])
        for way in stack.ways:
            (leg,) = way.requests
            assert [bool(part["url"]) for part in leg["content_parts"]] == [True]
            way.reset()


def lose_images(engine: ServerProcess) -> None:
    httpx.post(f"{engine.url}/reset_mm_cache", timeout=60, trust_env=False).raise_for_status()


def test_engines_are_sent_an_image_once_and_again_when_they_have_lost_it(stack: Stack) -> None:
    if stack.family in PICTURED:
        assert_pictures_are_sent(stack)
        return

    def asked(body: dict[str, Any]) -> tuple[list[list[bool]], list[list[bool]]]:
        before = pulled(stack)
        answer = said(stack.naming, body)
        assert pulled(stack) - before >= len(answer[0]) - 1, "the decode engine got the KV"
        assert answer == said(stack.decode, body)
        return sent(stack.ways[0]), sent(stack.ways[1])

    def resent(hop: str) -> float:
        return metric(stack.naming, "pd_media_resends_total", hop=hop)

    one, other = shown((448, 336), seed=31), shown((300, 200), seed=32)
    first, second = chat(*one), chat(*one, *other)
    assert asked(first) == ([[True]], [[True]])
    assert asked(first) == ([[False]], [[False]])
    assert asked(second) == ([[False, True]], [[False, True]])
    assert (resent("prefill"), resent("decode")) == (0, 0)
    lose_images(stack.decode)
    lost, whole = [False, False], [True, True]
    # Nobody knows whether KV was fetched before a failure, so the leg that is sent again has another prefill.
    assert asked(second) == ([lost, whole], [lost, whole])
    assert (resent("prefill"), resent("decode")) == (0, 1)
    assert stranded(stack.naming) == {"decode_retry": 1}
    lose_images(stack.prefill)
    assert asked(second) == ([lost, whole], [whole])
    assert (resent("prefill"), resent("decode")) == (1, 1)
    assert asked(second) == ([lost], [lost])
    assert stranded(stack.naming) == {"decode_retry": 1}
    becomes_free(
        *((stack.naming, IDLE), (stack.prefill, FREE), (stack.decode, FREE)), within=LEASE_OVER_WITHIN
    )


def test_images_that_an_encoder_has_taken_are_seen_by_an_engine_without_their_pixels(stack: Stack) -> None:
    def images(result: str) -> float:
        return metric(stack.encoding, "pd_encoded_images_total", result=result)

    if stack.family in PICTURED:
        assert said(stack.encoding, CHATS["one image"]) == said(stack.decode, CHATS["one image"])
        assert images("encoded") == 0
        return
    one, other = shown((448, 336), seed=21), shown((300, 200), seed=22)
    chats = [(chat(*one), 1), (chat(*other, *one, *other), 2), (chat(*shown((50, 90), seed=23)), 1)]
    for body, different in chats:
        encoded, before = images("encoded"), pulled(stack)
        answer = said(stack.encoding, body)
        assert images("encoded") - encoded == different
        assert pulled(stack) - before >= len(answer[0]) - 1, "the decode engine got the KV"
        assert answer == said(stack.decode, body)
    assert metric(stack.encoding, "pd_encoded_images_total") == images("encoded")
    becomes_free((stack.encoding, IDLE), (stack.prefill, FREE), (stack.decode, FREE), (stack.encoder, FREE))
    # Without the encoder the prefill engine computes the image.
    stack.encoder.kill()
    left = chat(*shown((60, 80), seed=24))
    assert said(stack.encoding, left) == said(stack.decode, left)
    assert images("unreachable") + images("no_member") == 1
    assert stranded(stack.encoding) == {}
