"""What clients are told of the inside: nothing. Every kind of answer is searched, head and body, for
addresses, ports, ids of engines and legs, transfer params and internal headers, also where engines put them
into errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    Answer,
    ErrorEvent,
    Fault,
    Garbage,
    HalfClose,
    Stall,
    Status,
)

TELLING = (
    "Engine p0 at http://127.0.0.1:PORT (127.0.0.1:PORT, pod prefill-0.prefill.svc.cluster.local) refused"
    " cmpl-LEG: remote_engine_id=8c5e6a1e-7b0f-4f0f-9d55-0a4c3c9b2f11 remote_host='127.0.0.1'"
)
"""What an engine might say of itself in an error."""

ALWAYS = (
    "kv_transfer_params", "do_remote", "remote_", "engine_id", "127.0.0.1", "generate-tokens-", "secrets",
    "8c5e6a1e", "svc.cluster", "EngineCore", "Traceback", "block_ids", "uvicorn", "aiohttp", "/root/",
    "x-render-",
)  # fmt: skip


def told(status: int) -> Status:
    error = {
        "message": TELLING,
        "type": TELLING,
        "param": "remote_host",
        "code": status,
        "kv_transfer_params": {},
    }
    return Status(status, json.dumps({"error": error}).encode())


ENGINE_FAULTS: list[Fault] = [
    None,
    *(told(status) for status in (400, 401, 404, 409, 422, 429, 500, 502, 503)),
    Status(500, TELLING.encode()),
    Status(302, TELLING.encode()),
    Garbage(f"data: {TELLING}\n\n".encode()),
    HalfClose(),
    Stall(),
    Answer({"kv_transfer_params": {"remote_host": "127.0.0.1"}}),
    Answer(finish_reason="error"),
]
LATER_FAULTS: list[Fault] = [ErrorEvent(after=1), HalfClose(after=1), Garbage(after=1), Stall(after=1)]

SETTINGS = {
    "timeouts": {"prefill": 0.3, "decode_first": 0.3, "decode_idle": 0.3, "render": 0.3, "derender": 0.3},
    "policy": {"prefill_attempts": 1, "decode_attempts": 1, "render_attempts": 1, "derender_attempts": 1},
}


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    for stream in (False, True):
        more = {"max_tokens": 3, "stream": stream, "model": "scripted"}
        yield CHAT, {"messages": [{"role": "user", "content": "a b"}], "return_token_ids": True} | more
        yield COMPLETIONS, {"prompt": ["a b", "c"], "n": 2, "logprobs": 1} | more
        yield MESSAGES, {"messages": [{"role": "user", "content": "a b"}]} | more


def search(stack: Stack, answer: httpx.Response) -> None:
    text = "\n".join(f"{name}: {value}" for name, value in answer.headers.items()) + "\n" + answer.text
    inside = [str(urlsplit(tier.url).port) for tier in stack.tiers]
    legs = [leg["request_id"] for tier in stack.tiers for leg in tier.requests[GENERATE]]
    for word in (*ALWAYS, *inside, *legs):
        assert word not in text, (word, text)
    assert not re.search(r"\b[pdr]0\b", text)
    assert "server" not in answer.headers


async def ask(stack: Stack, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"X-PD-Timing": "1", "X-PD-Explain": "1", "X-Forwarded-For": "203.0.113.7"}
    return await stack.http.post(path, json=body, headers=headers)


def scripted(stack: Stack, fault: Fault) -> Fault:
    if isinstance(fault, Status):
        port = str(urlsplit(stack.prefill[0].url).port)
        return Status(fault.status, fault.body.replace(b"PORT", port.encode()))
    return fault


@pytest.mark.parametrize("role", ["prefill", "decode", "render", "derender"])
async def test_no_answer_tells_of_the_inside_whatever_a_hop_says(launch: Launch, role: str) -> None:
    async with launch(settings=SETTINGS) as stack:
        seen = set()
        faults = ENGINE_FAULTS + (LATER_FAULTS if role == "decode" else [])
        if role in ("render", "derender"):
            # What the render tier says of a request is for the client; it knows nothing of engines.
            faults = [
                fault for fault in faults if not (isinstance(fault, Status) and 400 <= fault.status < 500)
            ]
        for fault in faults:
            for path, body in requests():
                hop = {"prefill": stack.prefill, "decode": stack.decode}.get(role, stack.renders)[0]
                at = GENERATE if role in ("prefill", "decode") else f"{path}/{role}"
                hop.faults[at] = [scripted(stack, fault)] * 4
                stack.prefill[0].held.clear()
                answer = await ask(stack, path, body)
                hop.faults[at] = []
                seen.add(answer.status_code)
                search(stack, answer)
                for tier in stack.tiers:
                    tier.violations.clear()  # params that were made up
                for pool in stack.services.pools:
                    for member in pool.members:
                        pool.succeeded(member)
                await stack.services.check_health()
        assert 200 in seen
        assert len(seen) > 1


async def test_other_routes_and_refusals_tell_nothing_either(launch: Launch) -> None:
    async with launch(settings={"server": {"admin_key": "an admin key"}}) as stack:
        for method, path in (
            ("GET", "/health"),
            ("GET", "/ready"),
            ("GET", "/version"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/x"),
            ("GET", "/nowhere"),
            ("GET", "/status"),
            ("POST", "/admin/drain"),
            ("PUT", CHAT),
            ("POST", CHAT),
            ("POST", "/v1/messages/count_tokens"),
        ):
            search(stack, await stack.http.request(method, path, headers={"X-PD-Explain": "1"}))
        for tier in stack.tiers:
            await tier.kill()
        await stack.services.check_health()
        for path, body in requests():
            answer = await ask(stack, path, body)
            assert answer.status_code == 503
            search(stack, answer)
        search(stack, await stack.http.get("/ready"))
        for tier in stack.tiers:
            await tier.revive()


FORGED = {
    "X-Render-Fingerprint": "forged",
    "X-Request-Timeout": "99999",
    "X-Request-Id": "chosen-by-the-client",
    "X-Data-Parallel-Rank": "3",
    "X-KV-Transfer-Params": "{}",
    "X-PD-Phase": "decode",
    "X-Pd-Generation": "forged",
    "EPP-Phase": "decode",
    "X-Prefiller-Host-Port": "203.0.113.9:1",
    "X-Gateway-Destination-Endpoint": "203.0.113.9:1",
    "X-Forwarded-For": "203.0.113.9",
    "Forwarded": "for=203.0.113.9",
    "Host": "forged.example",
    "Cookie": "a=forged",
    "Authorization": "Bearer forged",
    "X-Api-Key": "forged",
    "X-Vllm-Forged": "forged",
    "X-Media-Scope": "forged",
}


async def test_forged_headers_reach_no_hop(launch: Launch) -> None:
    """Hops get what the orchestrator writes, and of a client's headers those alone that are named in
    ``intake.FORWARDED_HEADERS``. Whose names of images are meant is told to render tiers alone."""
    async with launch(settings={"members": {"engine_api_key": "own key"}}) as stack:
        for path, body in requests():
            assert (await stack.http.post(path, json=body, headers=FORGED)).status_code == 200
        for tier in stack.tiers:
            for path, calls in tier.headers.items():
                for headers in calls:
                    wrong = {"forged", "203.0.113", "99999", "chosen-by-the-client"}
                    assert not [value for value in headers.values() if any(word in value for word in wrong)]
                    assert set(headers) - (set() if path == GENERATE else {"x-media-scope"}) <= {
                        "host", "content-type", "content-length", "authorization", "x-request-id",
                        "x-request-timeout", "x-data-parallel-rank", "traceparent", "accept", "user-agent",
                        "accept-encoding",
                    }, headers  # fmt: skip
        assert {h["authorization"] for h in stack.decode[0].headers[GENERATE]} == {"Bearer own key"}
        await stack.settled()


@pytest.mark.parametrize("placement", ["top", "both"])
async def test_forged_transfer_params_reach_no_engine(launch: Launch, placement: str) -> None:
    forged = {
        "do_remote_prefill": True,
        "remote_host": "203.0.113.9",
        "remote_port": 1,
        "remote_engine_id": "x",
    }
    body = {
        "kv_transfer_params": forged,
        "ec_transfer_params": forged,
        "vllm_xargs": {"kv_transfer_params": forged},
        "extra_args": {"kv_transfer_params": forged},
        "request_id": "chosen-by-the-client",
        "cache_salt": "mine",
    }
    async with launch(settings={"policy": {"kv_params_placement": placement}}) as stack:
        for path, request in requests():
            assert (await stack.http.post(path, json=request | body)).status_code == 200
        legs = [leg for tier in (*stack.prefill, *stack.decode) for leg in tier.requests[GENERATE]]
        assert len(legs) > 6
        assert "203.0.113.9" not in json.dumps(legs)
        assert "chosen-by-the-client" not in {leg["request_id"] for leg in legs}
        await stack.settled()
