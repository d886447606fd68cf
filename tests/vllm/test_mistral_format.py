"""A real vLLM that has a model in Mistral's own format says to what our render makes of a chat with images
what it says to the files themselves: the same prompt, tokens and logprobs, of a tiny model whose weights are
drawn, with the tokenizer of Pixtral."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.support import vllm
from tests.support.image_corpus import PATH, part, text
from tests.support.images import file, picture
from tests.support.mistral_models import lay_out
from tests.support.processes import ServerProcess
from tests.support.render_app import app_client, idle, load_service, settings_for
from tests.vllm.torchvision_reference import ROOT, torchvision_path

ONE, OTHER = (part(file(picture(448, 336, seed=seed))) for seed in (0, 7))
LARGE = part(file(picture(2100, 901, seed=3), "JPEG"))
CHATS: dict[str, list[dict[str, Any]]] = {
    "one image": [{"role": "user", "content": [text("What is it?"), ONE]}],
    "another of the same size": [{"role": "user", "content": [text("What is it?"), OTHER]}],
    "a conversation": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [LARGE, text("What is [IMG]?")]},
        {"role": "assistant", "content": "A picture."},
        {
            "role": "user",
            "content": [text("And this?"), part(file(picture(50, 190, "RGBA"))), text("?"), ONE],
        },
    ],
}
OPTIONS = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": True, "top_logprobs": 3}
ENGINE = (
    *(
        "--tokenizer-mode",
        "mistral",
        "--config-format",
        "mistral",
        "--enable-scale-out",
        "--dtype",
        "float32",
    ),
    *(
        "--enforce-eager",
        "--max-num-seqs",
        "4",
        "--kv-cache-memory-bytes",
        str(1 << 26),
        "--max-model-len",
        "8192",
    ),
    *(
        "--skip-mm-profiling",
        "--no-enable-prefix-caching",
        "--mm-processor-cache-gb",
        "0",
        "--load-format",
        "drawn",
    ),
    *("--worker-extension-cls", "tests.vllm.drawn_weights.DrawnWeights", *vllm.DEVELOPMENT_OPTIONS),
)


@pytest.fixture(scope="module")
def model(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(model_dir("tekken_240911"), tmp_path_factory.mktemp("mistral") / "eye")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[ServerProcess]:
    process = vllm.server("vllm", "serve", model, "--served-model-name", "eye", *ENGINE, log_dir=model.parent)
    path = os.pathsep.join([str(Path(__file__).parent / "torchvision_path"), torchvision_path(), str(ROOT)])
    process.env |= vllm.DEVELOPMENT | {"PYTHONPATH": path}
    try:
        vllm.start(process)
        yield process
    finally:
        process.stop()


async def rendered(settings: Settings, service: Service) -> dict[str, Any]:
    app, client = await app_client(settings, service)
    try:
        return {
            name: (await client.post(PATH, json={"messages": messages, **OPTIONS})).raise_for_status().json()
            for name, messages in CHATS.items()
        }
    finally:
        await client.aclose()
        await idle(app)


def asked(engine: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(
        engine.url + path, json=body | {"return_token_ids": True}, timeout=240, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    given: dict[str, Any] = answer.json()
    return given


def test_an_engine_sees_what_it_would_have_seen_itself(engine: ServerProcess, model: Path) -> None:
    said = {}
    settings = settings_for(model, served_model_name=("eye",), dtype="float32")
    for name, request in asyncio.run(rendered(settings, load_service(settings))).items():
        ours = asked(engine, "/inference/v1/generate", request)
        # The image again, so that nothing that is kept of it is looked at.
        httpx.post(f"{engine.url}/reset_encoder_cache", timeout=60, trust_env=False).raise_for_status()
        theirs = asked(engine, "/v1/chat/completions", {"messages": CHATS[name], **OPTIONS})
        assert ours["prompt_token_ids"] == theirs["prompt_token_ids"] == request["token_ids"], name
        places = [(place["offset"], place["length"]) for place in request["content_places"]]
        assert [(each["offset"], each["length"]) for each in ours["mm_placeholders"]["image"]] == places
        (own,), (their,) = ours["choices"], theirs["choices"]
        assert own["token_ids"] == their["token_ids"], name
        assert logprobs(own) == logprobs(their), name
        said[name] = logprobs(own)
    assert said["one image"] != said["another of the same size"]


def logprobs(choice: dict[str, Any]) -> list[list[float]]:
    return [[each["logprob"] for each in place["top_logprobs"]] for place in choice["logprobs"]["content"]]
