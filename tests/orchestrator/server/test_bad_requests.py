"""What a client can get wrong: the contract's error body, as the official client's right exception class."""

from __future__ import annotations

import gzip
import json
from types import ModuleType
from typing import Any

import openai
import pytest
import structlog.testing

from orchestrator.server import endpoints, pass_on
from tests.orchestrator.conftest import Launch
from tests.orchestrator.faults import GENERATE, Status

GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {}),
        (b"", {}),
        (b"[]", {}),
        (b'"x"', {}),
        (b"\xff", {}),
        (b"[" * 100_000, {}),
        (b'{"a":' * 100_000, {}),
        (b'{"messages": NaN}', {}),
        (b"{}", {"content-type": "text/plain"}),
        (b'{"timeout": "soon"}', {}),
        (b"{}", {"x-request-timeout": "-1"}),
    ],
    ids=str,
)
async def test_bodies_that_are_not_requests(launch: Launch, body: bytes, headers: dict[str, str]) -> None:
    async with launch() as stack:
        answer = await stack.http.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"} | headers
        )
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == 400
        assert not any(stack.render.requests.values())
        await stack.settled()


@pytest.mark.parametrize(
    ("path", "endpoint", "module"),
    [
        ("/v1/chat/completions", "chat", endpoints),
        ("/v1/messages", "messages", endpoints),
        ("/inference/v1/generate", "generate", endpoints),
        ("/tokenize", "tokenize", pass_on),
    ],
)
async def test_a_fault_of_ours_before_there_is_an_exchange_is_counted_and_logged_once(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, path: str, endpoint: str, module: ModuleType
) -> None:
    async with launch() as stack:
        with monkeypatch.context() as broken, structlog.testing.capture_logs() as lines:
            broken.setattr(module, "read_request", lambda *_, **__: 1 // 0)
            answer = await stack.http.post(path, json=GOOD, headers={"X-Request-Id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
        assert answer.json()["error"]["message"] == "internal error"
        [line] = lines
        assert isinstance(line.pop("exc_info"), ZeroDivisionError)
        assert line == {
            "event": "unexpected error",
            "log_level": "error",
            "client_id": "mine",
            "endpoint": endpoint,
            "outcome": "server_error",
        }
        counts = (await stack.http.get("/metrics")).text
        assert f'pd_requests_total{{endpoint="{endpoint}",outcome="server_error"}} 1.0' in counts
        await stack.settled()


@pytest.mark.parametrize("text", ["\\ud83d", "x \\uD83D y", "\\udf0d", "\\ud83c\\udf0d \\udf0d"])
async def test_half_a_character_is_named(launch: Launch, text: str) -> None:
    async with launch() as stack:
        headers = {"content-type": "application/json"}
        body = f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'
        answer = await stack.http.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 400
        assert "a lone surrogate is not valid text" in answer.text
        cut = body.replace(text, "\\ud83c\\udf0d")[:-1]
        answer = await stack.http.post("/v1/chat/completions", content=cut, headers=headers)
        assert answer.status_code == 400
        assert "surrogate" not in answer.text


@pytest.mark.parametrize("value", ["1e400", "[-1e999]", "1" * 5000])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "model"),
        ("/v1/chat/completions", "continuation"),
        ("/v1/completions", "echo"),
        ("/v1/responses", "conversation"),
        ("/v1/messages", "timeout"),
    ],
)
async def test_a_number_that_is_out_of_range_is_named(
    launch: Launch, path: str, name: str, value: str
) -> None:
    async with launch() as stack:
        body = f'{{"{name}": {value}}}'
        answer = await stack.http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert f"{name}: " in answer.text
        assert "out of range" in answer.text
        await stack.settled()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_compressed_body_is_refused_by_name(launch: Launch, path: str) -> None:
    async with launch() as stack:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        answer = await stack.http.post(
            path, content=gzip.compress(json.dumps(GOOD).encode()), headers=headers
        )
        assert answer.status_code == 415
        assert "Content-Encoding 'gzip' is not supported" in answer.json()["error"]["message"]
        same = await stack.http.post(path, json=GOOD, headers={"content-encoding": "identity"})
        assert same.status_code != 415
        await stack.settled()


async def test_a_body_that_is_too_large(launch: Launch) -> None:
    async with launch(settings={"limits": {"body_bytes": 100}}) as stack:
        body = json.dumps(GOOD | {"user": "x" * 100}).encode()

        async def parts() -> Any:
            yield body

        headers = {"content-type": "application/json"}
        for content in (body, parts()):
            answer = await stack.http.post("/v1/chat/completions", content=content, headers=headers)
            assert answer.status_code == 413
        await stack.settled()


async def test_renders_refusal_is_the_answer(launch: Launch) -> None:
    async with launch() as stack:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as raised:
                await stack.client.chat.completions.create(model="m", messages=[], stream=stream)
            assert raised.value.param == "messages"
        assert not stack.prefill[0].requests[GENERATE]
        await stack.settled()


@pytest.mark.parametrize("name", ["structured_outputs", "bad_words"])
async def test_what_token_only_engines_cannot_do_is_refused_before_any_engine(
    launch: Launch, name: str
) -> None:
    value: Any = {"json": {}} if name == "structured_outputs" else ["x"]
    async with launch() as stack:
        answer = await stack.http.post("/v1/chat/completions", json=GOOD | {name: value})
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]
        assert not stack.prefill[0].requests[GENERATE]
        await stack.settled()
    async with launch(settings={"policy": {"engine_capabilities": [name]}}) as stack:
        assert (await stack.http.post("/v1/chat/completions", json=GOOD | {name: value})).status_code == 200
        assert stack.decode[0].requests[GENERATE][0]["sampling_params"][name] == value


async def test_ids_outside_the_vocabulary_reach_no_engine(launch: Launch) -> None:
    async with launch(settings={"policy": {"vocab_size": 5}}) as stack:
        body = {"messages": [{"role": "user", "content": "abc abcdef"}]}
        answer = await stack.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "6" in answer.json()["error"]["message"]
        assert not stack.prefill[0].requests[GENERATE]


async def test_too_many_runs(launch: Launch) -> None:
    async with launch(settings={"limits": {"runs_per_request": 4}}) as stack:
        answer = await stack.http.post("/v1/completions", json={"prompt": ["a", "b", "c"], "n": 2})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "n"
        await stack.settled()


async def test_unknown_paths_and_methods(launch: Launch) -> None:
    async with launch() as stack:
        missing = await stack.http.get("/v1/nope")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NotFoundError")
        wrong = await stack.http.get("/v1/chat/completions")
        assert wrong.status_code == 405
        assert wrong.json()["error"]["code"] == 405


async def test_one_model_is_found_by_its_name(launch: Launch) -> None:
    async with launch() as stack:
        assert (await stack.client.models.retrieve("scripted")).id == "scripted"
        for name in ("nope", "org/nope"):
            with pytest.raises(openai.NotFoundError) as raised:
                await stack.client.models.retrieve(name)
            assert raised.value.param == "model"


@pytest.mark.parametrize("echo", [True, "true", 1])
async def test_echo_is_refused_before_any_hop(launch: Launch, echo: Any) -> None:
    async with launch() as stack:
        body = {"model": "m", "prompt": "x", "echo": echo}
        answer = await stack.http.post("/v1/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "echo"
        assert not stack.render.requests
        assert (await stack.http.post("/v1/completions", json=body | {"echo": False})).status_code == 200


async def test_requests_are_counted_by_a_few_outcomes_whatever_type_their_errors_have(
    launch: Launch,
) -> None:
    async with launch() as stack:
        url, headers = "/v1/chat/completions", {"content-type": "application/json"}
        await stack.http.post(url, content=b"{", headers=headers)
        await stack.http.post(url, json=GOOD | {"messages": []})
        stack.render.faults["/v1/chat/completions/render"] += [
            Status(422, b'{"error":{"message":"m","type":"Odd","param":null,"code":422}}')
        ]
        await stack.http.post(url, json=GOOD)
        stack.decode[0].healthy = False
        await stack.services.check_health()
        await stack.http.post(url, json=GOOD)
        await stack.settled()
        samples = [s for m in stack.services.metrics.requests.collect() for s in m.samples]
        counts = {s.labels["outcome"]: s.value for s in samples if s.name.endswith("_total")}
        assert counts == {"client_error": 3.0, "unavailable": 1.0}


async def test_a_refused_request_is_one_line_that_says_why(launch: Launch) -> None:
    async with launch() as stack:
        with structlog.testing.capture_logs() as lines:
            await stack.http.post("/v1/chat/completions", json=GOOD | {"messages": []})
            await stack.http.post("/v1/chat/completions", json=GOOD | {"timeout": -1})
            await stack.settled()
        shown = [line for line in lines if line["log_level"] != "debug"]
        assert [(line["event"], line["log_level"]) for line in shown] == [("request", "info")] * 2
        assert shown[0]["error"] == {"status": 400, "message": "messages is empty"}
        assert shown[1]["error"]["status"] == 400


async def test_models_without_a_render_tier_is_an_honest_error(launch: Launch) -> None:
    async with launch() as stack:
        stack.services.render_pool._members.clear()
        assert (await stack.http.get("/v1/models")).status_code == 503


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_refusal_that_is_too_long_to_be_read_is_the_clients_error(launch: Launch, role: str) -> None:
    """An engine repeats what a client has sent, a model's name say, and is not to blame for its length."""
    settings = {"limits": {"error_bytes": 1000}, "health": {"breaker_threshold": 1}}
    async with launch(settings=settings) as stack:
        error = {"message": "x" * 2000, "type": "NotFoundError", "param": "model", "code": 404}
        (engine,) = getattr(stack, role)
        engine.faults[GENERATE].append(Status(404, json.dumps({"error": error}).encode()))
        answer = await stack.http.post("/v1/chat/completions", json=GOOD)
        assert answer.status_code == 404
        assert answer.json()["error"] == {
            "message": f"the {role} tier refuses this request and says more than is read",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        }
        pools = (await stack.http.get("/status")).json()["pools"]
        assert [member["breaker"] for member in pools[role]] == ["closed"]
        assert not engine.faults[GENERATE]
        await stack.settled()
