"""HTTP behaviour of the engine: parameters, errors, aborts, disconnects, overload."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.core.capabilities import from_server_info
from orchestrator.embedded.engine import EngineSettings
from tests.orchestrator.embedded.engines import GENERATE, Client, body, frames, prompt, serving, until

PROMPT = prompt(30)


@pytest.fixture(scope="module")
def shared(tiny_model: Path) -> Iterator[Client]:
    with serving(tiny_model, max_model_len=256, max_body_bytes=20_000) as client:
        yield client


@pytest.fixture
def engine(shared: Client) -> Iterator[Client]:
    yield shared
    shared.idle()


@pytest.fixture
def paced(tmp_path: Path, tiny_model: Path) -> Iterator[Client]:
    """One slot, a queue of one; prompts that end in 9 9 are played for 20 s."""
    script = tmp_path / "script.jsonl"
    slow = {"match": {"suffix": [9, 9]}, "token_ids": [7] * 400, "interval_ms": 50}
    script.write_text("\n".join(map(json.dumps, [slow, {"token_ids": [4, 5, 6]}])))
    with serving(
        tiny_model, script=script, settings=EngineSettings(max_sequences=1, max_waiting=1)
    ) as client:
        yield client
        client.idle()


def error(response: httpx.Response) -> tuple[int, str, str | None, str]:
    value = response.json()["error"]
    assert value["code"] == response.status_code
    return response.status_code, value["type"], value["param"], value["message"]


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": -1}, "temperature must be non-negative, got -1.0."),
        ({"temperature": 2.5}, "temperature must be in [0, 2], got 2.5."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0.0."),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2."),
        ({"min_p": 1.1}, "min_p must be in [0, 1], got 1.1."),
        ({"repetition_penalty": 1e308}, "repetition_penalty must be in [1e-06, 1e+06], got 1e+308."),
        ({"repetition_penalty": 1e-300}, "repetition_penalty must be in [1e-06, 1e+06], got 1e-300."),
        ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2], got 3.0."),
        ({"frequency_penalty": -3}, "frequency_penalty must be in [-2, 2], got -3.0."),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0.0."),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1."),
        ({"min_tokens": 9}, "min_tokens must be less than or equal to max_tokens=8, got 9."),
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 2}, "n must be 1 when using greedy sampling, got 2."),
        ({"stream_interval": 0}, "stream_interval must be at least 1, got 0."),
        ({"logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
        ({"logprobs": -1}, "Requested sample logprobs of 256, which is greater than max allowed: 20"),
        ({"prompt_logprobs": 99}, "Requested prompt logprobs of 99, which is greater than max allowed: 20"),
        ({"logit_bias": {"x": 1}}, "cannot be converted to integer token IDs: ['x']"),
        ({"logit_bias": {"256": 1}}, "token_id(s) [256] in logit_bias contain out-of-vocab token ids."),
        ({"logit_bias": {"-1": 1}}, "token_id(s) [-1] in logit_bias"),
        ({"logit_bias": {"9" * 400: 1}}, "cannot be converted"),
        ({"allowed_token_ids": []}, "allowed_token_ids is not None and empty!"),
        ({"allowed_token_ids": [256]}, "out-of-vocab token id!"),
        ({"stop": "x"}, "stop strings are not supported"),
    ],
)
def test_bad_sampling_params(engine: Client, sampling: dict[str, Any], message: str) -> None:
    status, kind, _, got = error(engine.post(PROMPT, sampling=sampling))
    assert (status, kind) == (400, "BadRequestError")
    assert message in got


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        b'{"token_ids":"abc","sampling_params":{}}',
        b'{"token_ids":[1.5],"sampling_params":{}}',
        b'{"token_ids":[-1],"sampling_params":{}}',
        b'{"token_ids":[null],"sampling_params":{}}',
        b'{"token_ids":[1],"sampling_params":7}',
        b'{"token_ids":[1],"sampling_params":{"max_tokens":"many"}}',
        b'{"token_ids":[1],"sampling_params":{"temperature":NaN}}',
        b'{"token_ids":[1],"sampling_params":{"max_tokens":1e400}}',
        b'{"token_ids":[%s],"sampling_params":{}}' % (b"9" * 500),
        b'{"token_ids":[1],"sampling_params":{},"output_mode":"audio"}',
        b'{"token_ids":[1],"sampling_params":{},"features":{}}',
        b'{"token_ids":[1],"sampling_params":{"max_tokens":1},"kv_transfer_params":{"do_remote_prefill":"x"}}',
        b"[" * 5000,
    ],
    ids=lambda content: content[:40].decode("latin-1"),
)
def test_malformed_bodies_are_a_400(engine: Client, content: bytes) -> None:
    response = engine.http.post(GENERATE, content=content, headers={"content-type": "application/json"})
    assert error(response)[0] == 400


def test_a_body_over_the_bound_is_a_413(engine: Client) -> None:
    response = engine.http.post(GENERATE, content=b" " * 20_001, headers={"content-type": "application/json"})
    assert error(response)[:2] == (413, "PayloadTooLargeError")


def test_other_media_types_are_refused_as_recorded(engine: Client) -> None:
    response = engine.http.post(GENERATE, content=b"{}", headers={"content-type": "text/plain"})
    assert error(response)[:2] == (400, "Bad Request")


def test_unknown_paths_and_methods(engine: Client) -> None:
    assert engine.http.get("/nothing").json() == {"detail": "Not Found"}
    wrong = engine.http.get(GENERATE)
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})


def test_a_websocket_is_refused(engine: Client) -> None:
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
    }
    assert engine.http.get(GENERATE, headers=handshake).status_code == 403


@pytest.mark.parametrize("length", [256, 257])
def test_a_prompt_that_leaves_no_room_is_refused(engine: Client, length: int) -> None:
    status, kind, _, message = error(engine.post(prompt(length)))
    assert (status, kind) == (400, "BadRequestError")
    assert "longer than the maximum model length of 256" in message


def test_output_ends_at_the_context_length(engine: Client) -> None:
    answer = engine.generate(prompt(250), sampling={"max_tokens": 50})
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


def test_max_tokens_one_gives_one_token(engine: Client) -> None:
    assert len(engine.tokens(PROMPT, sampling={"max_tokens": 1})) == 1


def test_eos_ends_unless_ignored_and_min_tokens_holds_it_back(engine: Client) -> None:
    biased = {"logit_bias": {"3": 100}, "ignore_eos": False}
    assert engine.tokens(PROMPT, sampling=biased) == [3]
    assert engine.tokens(PROMPT, sampling={**biased, "ignore_eos": True}) == [3] * 8
    held = engine.tokens(PROMPT, sampling={**biased, "min_tokens": 4})
    assert len(held) == 5
    assert held.index(3) == 4


def test_stop_tokens_end_even_when_eos_is_ignored(engine: Client) -> None:
    free = engine.tokens(PROMPT)
    choice = engine.generate(PROMPT, sampling={"stop_token_ids": [free[2], 10**9]})["choices"][0]
    assert choice["token_ids"] == free[: free.index(free[2]) + 1]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", free[2])


def test_choices_differ_and_repeat_with_a_seed(engine: Client) -> None:
    sampling = {"n": 3, "temperature": 1, "seed": 5}
    first, second = (engine.generate(PROMPT, sampling=sampling) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len({tuple(choice["token_ids"]) for choice in first["choices"]}) == 3
    assert first["usage"]["completion_tokens"] == 24
    single = engine.tokens(PROMPT, sampling={"temperature": 1, "seed": 6})
    assert single == first["choices"][1]["token_ids"], "choice i is the seed's i-th successor"


def test_a_stream_of_choices_holds_what_the_whole_answer_holds(engine: Client) -> None:
    sampling = {"n": 3, "temperature": 1, "seed": 5, "logprobs": 1, "stream_interval": 3}
    whole = engine.generate(PROMPT, sampling=sampling)
    chunks = engine.stream(
        PROMPT, sampling=sampling, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 30, "total_tokens": 54, "completion_tokens": 24}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
        assert [token for part in mine for token in part["token_ids"]] == choice["token_ids"]
        assert [entry for part in mine for entry in part["logprobs"]["content"]] == choice["logprobs"][
            "content"
        ]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + ["length"]
    indexes = [chunk["choices"][0]["index"] for chunk in chunks[:-1]]
    assert indexes != sorted(indexes), "choices are interleaved"


def test_prompt_logprobs_are_those_of_the_next_prompt_token(engine: Client) -> None:
    tokens = prompt(150, seed=3)  # two chunks
    answer = engine.generate(tokens, sampling={"prompt_logprobs": 2, "max_tokens": 1, "logprobs": 0})
    entries = answer["prompt_logprobs"]
    assert len(entries) == 150
    assert entries[0] is None
    assert all(next(iter(entry)) == str(token) for entry, token in zip(entries[1:], tokens[1:], strict=True))
    shorter = engine.generate(
        tokens[:100], sampling={"max_tokens": 1, "logprobs": 1, "logit_bias": {str(tokens[100]): 100}}
    )
    sampled = shorter["choices"][0]["logprobs"]["content"][0]
    assert sampled["token_id"] == tokens[100]
    assert entries[100][str(tokens[100])]["logprob"] == pytest.approx(sampled["logprob"], abs=1e-4)


def test_abort_by_the_id_in_the_answer(paced: Client) -> None:
    slow = body([*PROMPT, 9, 9], stream=True, sampling={"max_tokens": 400})
    with paced.http.stream("POST", GENERATE, json=slow, headers={"x-request-id": "mine"}) as response:
        lines = response.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        assert first["request_id"] == "generate-tokens-mine"
        for ids in (["generate-tokens-other", 7], ["generate-tokens-mine"]):
            answer = httpx.post(paced.url + "/inference/v1/abort_requests", json={"request_ids": ids})
            assert (answer.status_code, answer.content) == (200, b"")
        rest = [line for line in lines if line]
    last = json.loads(rest[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "abort"
    assert rest[-1] == "data: [DONE]"


def test_abort_of_a_queued_whole_answer(paced: Client) -> None:
    slow = body([*PROMPT, 9, 9], stream=True, sampling={"max_tokens": 400})
    answers: list[dict[str, Any]] = []
    with paced.http.stream("POST", GENERATE, json=slow) as response:
        lines = response.iter_lines()
        next(lines)
        thread = threading.Thread(target=lambda: answers.append(paced.generate(PROMPT, request_id="q")))
        thread.start()
        until(lambda: paced.running.engine.gauges().waiting == 1)
        httpx.post(paced.url + "/inference/v1/abort_requests", json={"request_ids": ["generate-tokens-q"]})
        thread.join()
        lines.close()
    choice = answers[0]["choices"][0]
    assert (choice["finish_reason"], choice["token_ids"]) == ("abort", [])


def test_abort_needs_ids(engine: Client) -> None:
    response = engine.http.post("/inference/v1/abort_requests", json={})
    assert error(response) == (400, "Bad Request", None, "Missing 'request_ids' in request body")


def test_a_full_queue_is_a_503_and_a_disconnect_frees_everything(paced: Client) -> None:
    slow = body([*PROMPT, 9, 9], stream=True, sampling={"max_tokens": 400})
    with paced.http.stream("POST", GENERATE, json=slow) as response:
        lines = response.iter_lines()
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(paced.url + GENERATE, json=body(PROMPT), timeout=0.3)  # queued, then gone
        until(lambda: paced.running.engine.gauges().waiting == 0)
        thread = threading.Thread(target=lambda: paced.generate(PROMPT))
        thread.start()
        until(lambda: paced.running.engine.gauges().waiting == 1)
        assert error(httpx.post(paced.url + GENERATE, json=body(PROMPT)))[:2] == (
            503,
            "ServiceUnavailableError",
        )
        lines.close()
    thread.join()


def test_a_request_larger_than_the_pool_is_refused(tiny_model: Path) -> None:
    with serving(tiny_model, blocks=4) as small:
        status, _, _, message = error(small.post(prompt(60), sampling={"max_tokens": 6}))
        assert status == 400
        assert "needs 5 KV blocks, the engine has 4" in message
        assert len(small.tokens(prompt(60), sampling={"max_tokens": 5})) == 5


def test_a_pool_under_pressure_still_answers_everything(tiny_model: Path) -> None:
    with serving(tiny_model, blocks=6) as small:
        expected = [small.tokens(prompt(40, seed=seed)) for seed in range(6)]
        got: dict[int, list[int]] = {}

        def run(seed: int) -> None:
            got[seed] = small.tokens(prompt(40, seed=seed))

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [got[seed] for seed in range(6)] == expected
        small.idle()


def test_a_failing_step_fails_its_requests_only(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny_model) as client:
        backend = client.running.engine.backend
        original = backend.decode

        def broken(rows: Any) -> Any:
            raise MemoryError

        monkeypatch.setattr(backend, "decode", broken)
        assert error(client.post(PROMPT))[:2] == (500, "InternalServerError")
        response = client.post(PROMPT, stream=True)
        last = frames(response.text)[-1]
        assert last["error"]["code"] == 500
        monkeypatch.setattr(backend, "decode", original)
        assert len(client.tokens(PROMPT)) == 8
        client.idle()


def test_it_says_what_it_is_in_vllms_words(engine: Client) -> None:
    facts = from_server_info(engine.http.get("/server_info", params={"config_format": "json"}).content)
    known = dict(facts.items())
    assert len(known.pop("revision")) > 8
    assert "block_size=16" in known.pop("kv_layout")
    vocabulary = json.loads(
        (Path(engine.http.get("/v1/models").json()["data"][0]["root"]) / "config.json").read_text()
    )
    assert known == {
        "vocab_size": vocabulary["vocab_size"],
        "max_model_len": 256,
        "dtype": "float32",
        "kv_dtype": "float32",
        "block_size": 16,
        "tensor_parallel": 1,
        "connector": "EmbeddedConnector",
        "kv_role": "kv_both",
        "lease_seconds": 20.0,
        "tokens_only": True,
        "structured_outputs": False,
    }


def test_models_and_version(engine: Client) -> None:
    card = engine.http.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny", 256)
    assert engine.http.get("/version").json()["version"]
