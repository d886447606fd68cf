"""Anthropic's endpoints in front of scripted tiers: answers, usage from every hop, and errors in their
shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import ABORT, GENERATE, MESSAGES, ErrorEvent, HalfClose, Stall, Status
from tests.support.messages_stream import read

BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "one two three four"}],
}
STREAM = BODY | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
"""As render lowers it; the scripted tier copies what it is sent."""
JSON = {"content-type": "application/json"}
RENDER, DERENDER = f"{MESSAGES}/render", f"{MESSAGES}/derender"
BAD = b'{"error":{"message":"too hot","type":"BadRequestError","param":"temperature","code":400}}'


def events_of(text: str) -> list[dict[str, Any]]:
    """The data of the events of a stream, whose names must agree."""
    events = []
    for frame in text.split("\n\n"):
        lines = frame.split("\n")
        if frame.startswith("event: "):
            event = json.loads(lines[1].removeprefix("data: "))
            assert lines[0] == f"event: {event['type']}"
            events.append(event)
    return events


async def streamed(stack: Stack, **changes: Any) -> list[dict[str, Any]]:
    response = await stack.http.post(MESSAGES, json=STREAM | changes)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


@pytest.mark.parametrize("prefill", [0, 1])
async def test_whole_and_streamed_agree_to_the_last_count(launch: Launch, prefill: int) -> None:
    async with launch(prefill=prefill) as stack:
        whole = (await stack.http.post(MESSAGES, json=BODY)).json()
        streams = await streamed(stack)
        message = read(streams)
        await stack.settled()
    cached = 3 if prefill else 5
    usage = {"input_tokens": max(4 - cached, 0), "cache_read_input_tokens": cached, "output_tokens": 5}
    for answer in (whole, message):
        assert answer["usage"].items() >= usage.items()
        assert answer["id"].startswith("msg_")
        assert answer["stop_reason"] == "max_tokens"
        assert answer["content"][0]["text"] == "t100 t101 t102 t103 t104 "
    if prefill:
        assert streams[0]["message"]["usage"]["cache_read_input_tokens"] == cached


@pytest.mark.parametrize("sessions", [False, True])
async def test_a_stop_sequence_aborts_decode(launch: Launch, sessions: bool) -> None:
    async with launch(pace=0.01, settings={"sessions": {"enabled": sessions}}) as stack:
        options = {"stop_sequences": ["t102"], "max_tokens": 50}
        message = read(await streamed(stack, **options))
        whole = (await stack.http.post(MESSAGES, json=BODY | options)).json()
        await stack.settled()
        assert len(stack.decode[0].aborted) == 2
    for answer in (message, whole):
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "t102")
        assert answer["content"][0]["text"] == "t100 t101 "
        assert answer["usage"]["output_tokens"] == 3


async def test_the_request_reaches_render_and_derender_as_it_came(launch: Launch) -> None:
    async with launch() as stack:
        await stack.http.post(MESSAGES, json=BODY | {"metadata": {"user_id": "u"}})
        await stack.settled()
        assert stack.render.requests[RENDER][0]["metadata"] == {"user_id": "u"}
        [derender] = stack.render.requests[DERENDER]
        assert derender["messages_request"]["metadata"] == {"user_id": "u"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fault", "status", "kind"),
    [
        (RENDER, Status(400, BAD), 400, "invalid_request_error"),
        (RENDER, Status(404, BAD), 404, "not_found_error"),
        (RENDER, Status(500), 502, "api_error"),
        (RENDER, Status(429), 429, "rate_limit_error"),
        (DERENDER, Status(500), 502, "api_error"),
    ],
    ids=str,
)
async def test_errors_before_any_output(
    launch: Launch, stream: bool, path: str, fault: Status, status: int, kind: str
) -> None:
    async with launch(settings={"policy": {"render_attempts": 1, "derender_attempts": 1}}) as stack:
        stack.render.faults[path].append(fault)
        response = await stack.http.post(
            MESSAGES, json=STREAM if stream else BODY, headers={"X-Request-Id": "mine"}
        )
        assert (response.status_code, response.headers["x-request-id"]) == (status, "mine")
        answer = response.json()
        assert (answer["type"], answer["error"]["type"], answer["request_id"]) == ("error", kind, "mine")
        if fault.body == BAD:
            assert answer["error"]["message"] == "too hot"
        assert ("retry-after" in response.headers) == (status == 429)
        await stack.settled()


async def test_bodies_that_are_none(launch: Launch) -> None:
    async with launch(settings={"limits": {"body_bytes": 1000}}) as stack:
        for body, status, kind in (
            (b"{", 400, "invalid_request_error"),
            (b"[]", 400, "invalid_request_error"),
            (b" " * 2000, 413, "request_too_large"),
        ):
            for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
                answer = await stack.http.post(path, content=body, headers=JSON)
                assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        await stack.settled()


@pytest.mark.parametrize("fault", [HalfClose(3), ErrorEvent(3)], ids=str)
async def test_a_failure_after_output_is_an_error_event_and_the_end(launch: Launch, fault: Any) -> None:
    async with launch(pace=0.2, settings={"policy": {"decode_attempts": 1}}) as stack:
        stack.decode[0].faults[GENERATE].append(fault)
        events = await streamed(stack)
        assert events[0]["type"] == "message_start"
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] in ("api_error", "overloaded_error")
        assert not any(event["type"] == "message_stop" for event in events)
        await stack.settled()


async def test_the_client_finds_the_requests_id(launch: Launch) -> None:
    async with launch() as stack:
        async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
            answer = await client.messages.create(**BODY)
            assert answer._request_id is not None
            assert answer.id == f"msg_{answer._request_id}"
            stack.render.faults[RENDER].append(Status(400, BAD))
            with pytest.raises(anthropic.BadRequestError) as raised:
                await client.messages.create(**BODY)
            assert raised.value.request_id
        await stack.settled()


async def test_the_client_raises_on_an_error_event(launch: Launch) -> None:
    async with launch(pace=0.2, settings={"policy": {"decode_attempts": 1}}) as stack:
        stack.decode[0].faults[GENERATE].append(HalfClose(3))
        async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
            stream = await client.messages.create(**BODY, stream=True, extra_body=STREAM)
            with pytest.raises(anthropic.APIStatusError):
                async for _ in stream:
                    pass
        await stack.settled()


async def test_silence_is_filled_with_pings(launch: Launch) -> None:
    settings = {"server": {"sse_keepalive": 0.05}, "timeouts": {"prefill": 0.4}}
    async with launch(settings=settings) as stack:
        stack.prefill[0].faults[GENERATE].append(Stall())
        events = await streamed(stack)
        assert events[0] == events[1] == {"type": "ping"}
        assert events[-1]["error"]["type"] == "timeout_error"
        await stack.settled()


async def test_a_client_that_leaves_ends_the_decode(launch: Launch) -> None:
    async with launch(pace=0.02) as stack:
        async with stack.http.stream("POST", MESSAGES, json=STREAM | {"max_tokens": 500}) as response:
            async for line in response.aiter_lines():
                if "text_delta" in line:
                    break
        await stack.settled()
        assert stack.decode[0].requests[ABORT]


class TestCounting:
    async def test_is_renders(self, launch: Launch) -> None:
        async with launch() as stack:
            response = await stack.http.post(f"{MESSAGES}/count_tokens", json=BODY)
            assert response.json() == {"input_tokens": 4}
            assert not stack.prefill[0].requests[GENERATE]
            await stack.settled()

    async def test_goes_to_another_render_tier_when_one_fails(self, launch: Launch) -> None:
        async with launch(render=2) as stack:
            for tier in stack.renders:
                tier.faults[f"{MESSAGES}/count_tokens"].append(HalfClose())
                response = await stack.http.post(f"{MESSAGES}/count_tokens", json=BODY)
                assert response.json() == {"input_tokens": 4}
            await stack.settled()

    async def test_ends_when_the_client_says(self, launch: Launch) -> None:
        async with launch() as stack:
            wish = {"X-Request-Timeout": "0.2"}
            for _ in range(4):
                stack.render.hold.clear()
                response = await stack.http.post(f"{MESSAGES}/count_tokens", json=BODY, headers=wish)
                assert (response.status_code, response.json()["error"]["type"]) == (504, "timeout_error")
            stack.render.hold.set()
            told = stack.render.headers[f"{MESSAGES}/count_tokens"]
            assert len(told) == 4, "asked once for each request"
            assert all(0 < float(headers["x-request-timeout"]) <= 0.2 for headers in told)
            response = await stack.http.post(f"{MESSAGES}/count_tokens", json=BODY)
            assert response.status_code == 200, "no fault of the render tier"
            await stack.settled()

    async def test_fails_in_the_same_shape(self, launch: Launch) -> None:
        async with launch() as stack:
            stack.render.faults[f"{MESSAGES}/count_tokens"].append(Status(404, BAD))
            response = await stack.http.post(f"{MESSAGES}/count_tokens", json=BODY)
            assert response.status_code == 404
            assert response.json()["error"] == {"type": "not_found_error", "message": "too hot"}
            await stack.settled()

    async def test_waits_its_turn_among_the_render_legs(self, launch: Launch) -> None:
        settings = {"admission": {"render_per_member": 1, "queue": 0}}
        async with launch(settings=settings) as stack:
            stack.render.hold.clear()
            first = asyncio.create_task(stack.http.post(f"{MESSAGES}/count_tokens", json=BODY))
            await stack.render.waiting.wait()
            second = await stack.http.post(f"{MESSAGES}/count_tokens", json=BODY)
            assert (second.status_code, second.json()["error"]["type"]) == (503, "overloaded_error")
            stack.render.hold.set()
            assert (await first).json() == {"input_tokens": 4}
            await stack.settled()


async def test_keys_of_anthropic_clients_tell_tenants_apart(launch: Launch) -> None:
    async with launch() as stack:
        tenants = []
        for key in ("a", "b"):
            stack.render.hold.clear()
            ask = asyncio.create_task(stack.http.post(MESSAGES, json=BODY, headers={"x-api-key": key}))
            await stack.render.waiting.wait()
            [exchange] = stack.services.exchanges
            tenants.append(exchange.who.tenant)
            stack.render.waiting.clear()
            stack.render.hold.set()
            await ask
        assert len(set(tenants)) == 2
        assert not {"a", "b"} & set(tenants)  # the keys themselves are not kept
        await stack.settled()
