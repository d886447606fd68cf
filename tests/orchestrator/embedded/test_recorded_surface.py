"""The surface answers the recorded requests as the recorded tokens-only engine did: status, errors, shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.assembly import EngineOptions
from orchestrator.embedded.engine import EngineSettings
from orchestrator.embedded.inprocess import running_engine
from tests.orchestrator.embedded.engines import Client
from tests.orchestrator.embedded.random_llama import write_random_llama
from tests.support.corpus import exchanges

GENERATE = [e for e in exchanges("engine_generate2") if e["request"]["path"] == "/inference/v1/generate"]

FIRST_RECORDING = {
    # The first recording ends with the engine's death, by the request called gen_oov.
    *("get_health", "get_ping", "get_v1_models", "post_inference_v1_abort_requests"),
    *("gen", "gen_no_max", "gen_rendered_16"),
}
OTHERS = [e for e in exchanges("engine_generate") if e["name"] in FIRST_RECORDING]


CONTEXT = 1024
SHORT_CONTEXT = 64
"""For what fills the context: a thousand tokens of a vocabulary of 151,936 take their time."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the recorded one's vocabulary size."""
    return write_random_llama(
        tmp_path_factory.mktemp("wide"),
        vocabulary=151936,
        eos=[151645, 151643],
        hidden=16,
        inner=16,
        layers=1,
    )


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Client]:
    """The recorded engine's settings."""
    yield from served(model, CONTEXT)


@pytest.fixture(scope="module")
def short_engine(model: Path) -> Iterator[Client]:
    """The recorded engine's settings but for the context length."""
    yield from served(model, SHORT_CONTEXT)


def served(model: Path, context: int) -> Iterator[Client]:
    options = EngineOptions(
        model=model, served_names=("qwen3",), max_model_len=context, engine=EngineSettings(max_sequences=4)
    )
    with running_engine(options) as running:
        client = Client(running)
        yield client
        client.idle()
        client.http.close()


def answer(engine: Client, exchange: dict[str, Any]) -> tuple[int, str, Any]:
    """Status, media type and decoded body; of a stream, its frames."""
    request = exchange["request"]
    response = engine.http.request(
        request["method"], request["path"], json=request["body"], headers=request["headers"]
    )
    return response.status_code, response.headers["content-type"], decoded(response.text)


def decoded(text: str) -> Any:
    if text.startswith("data: "):
        assert text.endswith("\n\n")
        return [decoded(part.removeprefix("data: ")) for part in text[:-2].split("\n\n")]
    return json.loads(text) if text.startswith(("{", "[")) and text != "[DONE]" else text


SAME = {
    "finish_reason",
    "stop_reason",
    "usage",
    "output_mode",
    "model",
    "prompt_token_ids",
    "object",
    "max_model_len",
}
"""Fields whose values, and not only their types, must be those recorded."""


def shape(value: Any, field: str = "") -> Any:
    """A value without what differs from model to model and from run to run; keys keep their order."""
    if field in SAME:
        return value
    if field == "permission":
        return "any"
    if field == "prompt_logprobs" and value is not None:
        return [entry and {json.dumps(list(v)) for v in entry.values()} for entry in value]
    if isinstance(value, dict):
        return [(key, shape(item, key)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item, field) for item in value]
    return value if value in ("[DONE]", None) else type(value).__name__


def test_shape_tells_answers_apart() -> None:
    assert shape({"a": 1, "b": None}) != shape({"b": None, "a": 1})
    assert shape({"a": 1}) != shape({"a": None})
    assert shape({"token_ids": [1, 2]}) != shape({"token_ids": [1]})


FILLING = ("gen_rendered_16", "gen_no_max")


@pytest.mark.parametrize("name", FILLING)
def test_without_max_tokens_the_context_is_filled(short_engine: Client, name: str) -> None:
    """Unless the model ends earlier."""
    exchange = next(e for e in OTHERS if e["name"] == name)
    assert exchange["response"]["body"]["usage"]["total_tokens"] == CONTEXT
    status, _, got = answer(short_engine, exchange)
    assert status == exchange["response"]["status"], got
    assert got["usage"]["total_tokens"] == SHORT_CONTEXT or got["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "exchange", [e for e in GENERATE + OTHERS if e["name"] not in FILLING], ids=lambda e: e["id"]
)
def test_recorded_request(engine: Client, exchange: dict[str, Any]) -> None:
    recorded = exchange["response"]
    status, kind, got = answer(engine, exchange)
    assert status == recorded["status"], got
    expected = recorded["body"]
    if isinstance(expected, str):
        expected = decoded(expected)
    if status != 200:
        assert without_context(got) == without_context(expected)
        return
    if got:
        assert kind == recorded["headers"]["content-type"]
    if exchange["name"] == "gen_stream_n2":
        # In which order choices take turns is not part of the contract.
        got.sort(key=turn)
    assert shape(got) == shape(expected)


def turn(frame: Any) -> int:
    return 99 if frame == "[DONE]" else int(frame["choices"][0]["index"])


def without_context(body: dict[str, Any]) -> dict[str, Any]:
    """Errors without the ``ctx`` part that repeats the message in pydantic's own words."""
    error = dict(body["error"])
    error["message"] = re.sub(r", 'ctx': \{[^}]*\}", "", error["message"])
    return error


@pytest.mark.parametrize(
    ("name", "sampled"), [("gen_stoptok", 151645), ("gen_stoptok2", 5)], ids=["eos", "stop token"]
)
def test_a_stop_token_ends_and_is_named(engine: Client, name: str, sampled: int) -> None:
    exchange = next(e for e in GENERATE if e["name"] == name)
    choice = answer(engine, exchange)[2]["choices"][0]
    assert (choice["token_ids"], choice["stop_reason"]) == ([sampled], sampled)


def test_stream_interval_groups_tokens_as_recorded(engine: Client) -> None:
    exchange = next(e for e in GENERATE if e["name"] == "gen_stream_interval")
    frames = answer(engine, exchange)[2]
    assert [len(frame["choices"][0]["token_ids"]) for frame in frames[:-1]] == [1, 4, 4]


def test_an_id_outside_the_vocabulary_is_refused_and_the_engine_lives(engine: Client) -> None:
    """The recorded engine died of it."""
    exchange = next(e for e in exchanges("engine_generate") if e["name"] == "gen_oov")
    status, _, body = answer(engine, exchange)
    assert (status, body["error"]["type"], body["error"]["param"]) == (400, "BadRequestError", "token_ids")
    assert engine.http.get("/health").status_code == 200
