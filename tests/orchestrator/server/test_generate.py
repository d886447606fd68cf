"""Clients of token IDs: ``/inference/v1/generate`` through prefill and decode, as vLLM answers it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import GENERATE, ErrorEvent, HalfClose, Status
from tests.support.api_keys import api_key, bearer

ABORT = "/inference/v1/abort_requests"
IDS = [3, 3, 5]


def asked(ids: list[int] = IDS, **sampling: Any) -> dict[str, Any]:
    return {"token_ids": ids, "sampling_params": {"max_tokens": 4, "temperature": 0, **sampling}}


async def events(stack: Stack, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    async with stack.http.stream("POST", GENERATE, json=body | {"stream": True}, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
async def test_a_whole_answer_has_vllms_fields(launch: Launch, prefill: int) -> None:
    async with launch(prefill=prefill) as stack:
        body = asked(logprobs=0) | {"return_token_ids": True, "model": "m", "request_id": "mine"}
        answer = (await stack.http.post(GENERATE, json=body)).json()
        assert isinstance(answer.pop("created"), int)
        choice = answer["choices"][0]
        assert [entry["token_id"] for entry in choice.pop("logprobs")["content"]] == [100, 101, 102, 103]
        assert answer == {
            "request_id": "generate-tokens-mine",
            "model": "m",
            "usage": {
                "prompt_tokens": 3,
                "total_tokens": 7,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 3 if prefill else 5},
                "completion_tokens_details": None,
            },
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "length",
                    "stop_reason": None,
                    "token_ids": [100, 101, 102, 103],
                    "routed_experts": None,
                    "sampling_mask": None,
                    "weight_versions": None,
                }
            ],
            "prompt_logprobs": None,
            "prompt_token_ids": IDS,
            "mm_placeholders": None,
            "prompt_token_id_logprobs": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
        }
        await stack.settled()
        assert not any(tier.held for tier in stack.prefill)
        assert not stack.render.requests


async def test_a_stream_has_vllms_chunks(launch: Launch) -> None:
    async with launch() as stack:
        body = asked() | {"return_token_ids": True, "stream_options": {"include_usage": True}}
        *chunks, last = await events(stack, body)
        assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == [
            100, 101, 102, 103,
        ]  # fmt: skip
        assert chunks[0].pop("prompt_token_ids") == IDS
        assert {frozenset(chunk) for chunk in chunks} == {
            frozenset({"request_id", "usage", "output_mode", "choices"})
        }
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
        assert last == {
            "request_id": chunks[0]["request_id"],
            "usage": {
                "prompt_tokens": 3,
                "total_tokens": 7,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
            "output_mode": "tokens",
            "choices": [],
        }
        await stack.settled()


async def test_prompt_logprobs_come_from_prefill_and_are_never_asked_of_decode(launch: Launch) -> None:
    async with launch() as stack:
        answer = (await stack.http.post(GENERATE, json=asked(prompt_logprobs=1))).json()
        assert answer["prompt_logprobs"] == [None, {"7": {"logprob": -1.5, "rank": 1}}]
        [prefill], [decode] = (tier.requests[GENERATE] for tier in (stack.prefill[0], stack.decode[0]))
        assert prefill["sampling_params"]["prompt_logprobs"] == 1
        assert "prompt_logprobs" not in decode["sampling_params"]
        assert prefill["token_ids"] == decode["token_ids"] == IDS
        await stack.settled()


async def test_each_choice_has_a_hand_off_of_its_own(launch: Launch) -> None:
    async with launch() as stack:
        body = asked(n=3, temperature=1.0, seed=1)
        answer = (await stack.http.post(GENERATE, json=body)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert [choice["token_ids"][0] for choice in answer["choices"]] == [1100, 2100, 3100]
        used = [leg["kv_transfer_params"]["remote_request_id"] for leg in stack.decode[0].requests[GENERATE]]
        assert len(set(used)) == 3
        chunks = await events(stack, body)
        by_choice: dict[int, list[int]] = {}
        for chunk in chunks:
            [choice] = chunk["choices"]
            by_choice.setdefault(choice["index"], []).extend(choice["token_ids"])
        assert {index: tokens[0] for index, tokens in by_choice.items()} == {0: 1100, 1: 2100, 2: 3100}
        await stack.settled()


async def test_what_engines_tell_each_other_is_not_the_clients_to_write(launch: Launch) -> None:
    forged = {"do_remote_prefill": True, "remote_host": "203.0.113.9"}
    async with launch() as stack:
        body = asked(extra_args={"kv_transfer_params": forged, "mine": 1}) | {
            "kv_transfer_params": forged,
            "ec_transfer_params": forged,
            "request_id": "chosen",
            "unknown": "203.0.113.9",
        }
        assert (await stack.http.post(GENERATE, json=body)).status_code == 200
        sent = [leg for tier in (*stack.prefill, *stack.decode) for leg in tier.requests[GENERATE]]
        assert len(sent) == 2
        assert "203.0.113.9" not in json.dumps(sent)
        assert not any("chosen" in leg["request_id"] for leg in sent)
        assert sent[1]["sampling_params"]["extra_args"] == {"mine": 1}
        await stack.settled()


REFUSED: list[tuple[dict[str, Any], str | None]] = [
    ({"sampling_params": {}}, "body"),
    ({"token_ids": IDS}, "body"),
    ({"token_ids": [], "sampling_params": {}}, "token_ids"),
    ({"token_ids": ["a"], "sampling_params": {}}, "body.token_ids[0]"),
    (asked([1, -2]), "token_ids"),
    (asked([1, 500]), None),
    (asked(n=0), "n"),
    (asked(n=2), "n"),
    (asked(n=True), "body.sampling_params.n"),
    (asked(n=1000, temperature=1), "n"),
    (asked(max_tokens=0), "max_tokens"),
    (asked(max_tokens=None), "max_tokens"),
    (asked(min_tokens=9), "min_tokens"),
    (asked(stop=["x"]), "stop"),
    (asked(prompt_logprob_token_ids=[[1]]), "prompt_logprob_token_ids"),
    (asked(structured_outputs={"json": "{}"}), "structured_outputs"),
    (asked() | {"output_mode": "text"}, "output_mode"),
    (asked() | {"content_parts": [{}]}, "content_parts"),
    (asked() | {"cache_salt": 1}, "body.cache_salt"),
    (asked() | {"stream_options": {"include_usage": "x"}}, "body.stream_options.include_usage"),
]


async def test_bad_requests_are_refused_before_any_engine(launch: Launch) -> None:
    async with launch(settings={"policy": {"vocab_size": 500}}) as stack:
        for body, param in REFUSED:
            answer = await stack.http.post(GENERATE, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
        assert not any(tier.requests for tier in stack.tiers)
        await stack.settled()


async def test_max_tokens_is_what_is_left_of_the_context_when_that_is_known(launch: Launch) -> None:
    async with launch() as stack:
        for tier in (*stack.prefill, *stack.decode):
            tier.facts = {"model_config": {"max_model_len": 9}}
        for pool in stack.services.pools:
            for member in pool.members:
                stack.services.fleet.doubt(member)
        await stack.services.check_health()
        body = {"token_ids": IDS, "sampling_params": {}}
        answer = (await stack.http.post(GENERATE, json=body)).json()
        assert answer["usage"]["completion_tokens"] == 6
        too_long = await stack.http.post(GENERATE, json=asked([3] * 9))
        assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "input_tokens")
        await stack.settled()


async def test_decode_that_fails_before_the_first_token_is_tried_elsewhere(launch: Launch) -> None:
    async with launch(prefill=2, decode=2) as stack:
        faults = [HalfClose()]
        for tier in stack.decode:
            tier.plan = lambda _path, _body: faults.pop() if faults else None
        answer = await stack.http.post(GENERATE, json=asked())
        assert answer.json()["choices"][0]["token_ids"] == [100, 101, 102, 103]
        assert [len(tier.requests[GENERATE]) for tier in stack.decode] == [1, 1]
        await stack.settled()


async def test_a_stream_that_breaks_ends_with_an_error_event(launch: Launch) -> None:
    async with launch() as stack:
        stack.decode[0].faults[GENERATE].append(ErrorEvent(after=2))
        *chunks, last = await events(stack, asked())
        assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[100], [101]]
        assert last["error"]["code"] == 502
        assert "secrets" not in json.dumps(last)
        await stack.settled()


async def test_an_engines_refusal_is_passed_on(launch: Launch) -> None:
    refusal = (
        b'{"error":{"message":"top_p must be in (0, 1]","type":"BadRequestError","param":"top_p","code":400}}'
    )
    async with launch() as stack:
        stack.prefill[0].faults[GENERATE].append(Status(400, refusal))
        answer = await stack.http.post(GENERATE, json=asked(top_p=7))
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "top_p must be in (0, 1]")
        await stack.settled()


async def test_a_client_that_leaves_ends_its_legs(launch: Launch) -> None:
    async with launch(pace=0.02) as stack:
        async with stack.http.stream(
            "POST", GENERATE, json=asked(max_tokens=500) | {"stream": True}
        ) as answer:
            await anext(answer.aiter_lines())
        await stack.settled()
        assert stack.decode[0].sent_tokens < 500
        assert stack.decode[0].broken_off or stack.decode[0].aborted


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_answers_with_what_there_is(launch: Launch, stream: bool) -> None:
    async with launch(pace=0.01) as stack:
        body = asked(max_tokens=500) | {"stream": stream}
        request = asyncio.create_task(stack.http.post(GENERATE, json=body, headers={"X-Request-Id": "mine"}))
        await until(lambda: stack.decode[0].sent_tokens > 3)
        ids = {"request_ids": ["generate-tokens-mine", "unknown"]}
        aborted = await stack.http.post(ABORT, json=ids)
        assert (aborted.status_code, aborted.content) == (200, b"")
        answer = await request
        if stream:
            lines = [line for line in answer.text.split("\n\n") if line]
            assert lines[-1] == "data: [DONE]"
            choices = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
        else:
            choices = answer.json()["choices"]
        tokens = [token for choice in choices for token in choice["token_ids"]]
        assert tokens
        assert tokens == list(range(100, 100 + len(tokens)))
        assert [choice["finish_reason"] for choice in choices][-1] == "abort"
        await stack.settled()
        assert stack.decode[0].sent_tokens < 500


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"request_ids": "x"}',
        b"[",
        b'{"request_ids": [1]}',
        pytest.param(b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}", id="deep"),
    ],
)
async def test_an_abort_without_ids_is_refused(launch: Launch, body: bytes) -> None:
    async with launch() as stack:
        answer = await stack.http.post(ABORT, content=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_ids")


async def test_keys_guard_token_clients_as_all_others(launch: Launch) -> None:
    (alice, alices), (bob, bobs) = api_key("alice", max_tokens=50), api_key("bob", models=["m"])
    keys = {"keys": [alices, bobs], "cache_salt_secret": "0123456789abcdef"}
    async with launch(pace=0.01, settings={"auth": keys}) as stack:
        assert (await stack.http.post(GENERATE, json=asked())).status_code == 401
        assert (await stack.http.post(ABORT, json={"request_ids": []})).status_code == 401
        salts = []
        for key in (alice, bob):
            body = asked() | {"model": "m", "cache_salt": "s"}
            answer = await stack.http.post(GENERATE, json=body, headers=bearer(key))
            assert answer.status_code == 200
            salts.append(stack.decode[0].requests[GENERATE][-1]["cache_salt"])
        assert len({*salts, "s"}) == 3
        too_much = await stack.http.post(GENERATE, json=asked(max_tokens=51), headers=bearer(alice))
        assert (too_much.status_code, too_much.json()["error"]["param"]) == (400, "max_tokens")
        other = await stack.http.post(GENERATE, json=asked() | {"model": "x"}, headers=bearer(bob))
        assert other.status_code == 404
        # Nobody ends another tenant's request.
        body = asked(max_tokens=20) | {"model": "m", "request_id": "a"}
        request = asyncio.create_task(stack.http.post(GENERATE, json=body, headers=bearer(alice)))
        await until(lambda: stack.decode[0].sent_tokens > 10)
        ids = {"request_ids": ["generate-tokens-a"]}
        assert (await stack.http.post(ABORT, json=ids, headers=bearer(bob))).status_code == 200
        answer = await request
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        await stack.settled()


async def test_weight_versions_reach_the_client(launch: Launch) -> None:
    spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 4}]
    async with launch() as stack:
        stack.decode[0].weight_versions = spans
        answer: httpx.Response = await stack.http.post(GENERATE, json=asked())
        assert answer.json()["choices"][0]["weight_versions"] == spans
        chunks = await events(stack, asked())
        assert [chunk["choices"][0]["weight_versions"] for chunk in chunks] == [None, None, None, spans]
        await stack.settled()
