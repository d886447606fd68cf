"""A stream whose decode fails after visible output goes on elsewhere, if policy says so; SSE keep-alive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import CHAT, GENERATE, ErrorEvent, Fault, Garbage, HalfClose, Stall, Status

ON: dict[str, Any] = {"policy": {"continuations": 1}, "timeouts": {"decode_idle": 0.5}}


async def events(stack: Stack, **options: Any) -> tuple[str, list[str]]:
    """The text of the first choice, and every event that is not a chunk."""
    body = {"messages": [{"role": "user", "content": "one two"}], "stream": True, "max_tokens": 20} | options
    response = await stack.http.post("/v1/chat/completions", json=body)
    text, others = "", []
    for event in response.text.split("\n\n"):
        payload = event.removeprefix("data: ")
        chunk = json.loads(payload) if payload.startswith("{") else {}
        if chunk.get("choices"):
            text += chunk["choices"][0]["delta"].get("content") or ""
        elif event:
            others.append(payload)
    return text, others


def legs_of(stack: Stack, role: str) -> list[dict[str, Any]]:
    return [leg for tier in getattr(stack, role) for leg in tier.requests[GENERATE]]


@pytest.mark.parametrize("prefill", [1, 0], ids=["four hops", "three hops"])
@pytest.mark.parametrize("fault", [HalfClose(6), ErrorEvent(6), Garbage(after=6), Stall(6)], ids=str)
async def test_a_stream_goes_on_with_prompt_and_output_as_the_new_prompt(
    launch: Launch, fault: Fault, prefill: int
) -> None:
    async with launch(prefill=prefill, pace=0.03, settings=ON) as stack:
        stack.decode[0].faults[GENERATE].append(fault)
        text, others = await events(stack, min_tokens=8)
        assert others == ["[DONE]"]
        first, second = legs_of(stack, "decode")
        assert second["token_ids"] == [3, 3, 100, 101, 102, 103, 104, 105]
        assert second["sampling_params"]["max_tokens"] == 14
        assert second["sampling_params"]["min_tokens"] == 2
        assert text == "".join(f"t{100 + i} " for i in range(20)), "as if nothing had happened"
        if prefill:
            assert legs_of(stack, "prefill")[1]["token_ids"] == second["token_ids"]
            assert first["kv_transfer_params"] != second["kv_transfer_params"]
        assert stack.services.metrics.continuations._value.get() == 1
        await stack.settled()


async def test_derender_goes_on_with_the_state_it_had(launch: Launch) -> None:
    async with launch(pace=0.03, settings=ON) as stack:
        stack.decode[0].faults[GENERATE].append(HalfClose(6))
        await events(stack)
        calls = stack.render.requests[f"{CHAT}/derender"]
        read = 0
        for call in calls:
            state = json.loads(call["stream_state"]["s"])["n"] if call["stream_state"] else 0
            assert state == read
            read += len(call["generate_chunk"]["choices"][0]["token_ids"])
        assert read == 20


async def test_a_second_failure_is_an_honest_error_event(launch: Launch) -> None:
    async with launch(pace=0.03, settings=ON) as stack:
        stack.decode[0].faults[GENERATE] += [HalfClose(6), HalfClose(6)]
        text, others = await events(stack)
        assert text
        assert json.loads(others[0])["error"]["code"] == 503
        assert others[1:] == ["[DONE]"]
        await stack.settled()


async def test_no_prefill_to_go_on_with_is_an_error_event(launch: Launch) -> None:
    async with launch(pace=0.03, settings=ON) as stack:
        stack.decode[0].faults[GENERATE].append(HalfClose(6))
        stack.prefill[0].faults[GENERATE] += [None, Status(503), Status(503)]
        _, others = await events(stack)
        assert json.loads(others[0])["error"]["code"] == 503
        await stack.settled()


@pytest.mark.parametrize("options", [{"structured_outputs": {"regex": "a"}}, {"max_tokens": 6}], ids=str)
async def test_what_no_other_engine_could_go_on_with_is_not_tried(launch: Launch, options: Any) -> None:
    settings = ON | {"policy": {"continuations": 1, "engine_capabilities": ["structured_outputs"]}}
    async with launch(pace=0.03, settings=settings) as stack:
        stack.decode[0].faults[GENERATE].append(HalfClose(5 if "max_tokens" not in options else 6))
        _, others = await events(stack, **options)
        assert len(legs_of(stack, "decode")) == 1 or "max_tokens" in options
        assert others[-1] == "[DONE]"
        await stack.settled()


async def test_a_client_may_leave_while_the_stream_goes_on_elsewhere(launch: Launch) -> None:
    async with launch(pace=0.03, settings=ON) as stack:
        stack.decode[0].faults[GENERATE].append(HalfClose(6))
        ask = asyncio.create_task(events(stack))
        await until(lambda: len(legs_of(stack, "decode")) == 1 and stack.decode[0].sent_tokens > 3)
        stack.prefill[0].hold.clear()
        await stack.prefill[0].waiting.wait()
        ask.cancel()
        await stack.settled()
        assert len(stack.prefill[0].aborted) == 1


# ---- keep-alive --------------------------------------------------------------------------------------------

ALIVE: dict[str, Any] = {"server": {"sse_keepalive": 0.05}}


async def test_comments_keep_a_silent_stream_open_before_its_first_output(launch: Launch) -> None:
    async with launch(settings=ALIVE) as stack:
        stack.prefill[0].hold.clear()
        body = {"messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 3}
        async with stack.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            assert [await anext(lines) for _ in range(4)] == [": keep-alive", ""] * 2
            stack.prefill[0].hold.set()
            rest = [line async for line in lines if line.startswith("data")]
        assert rest[-1] == "data: [DONE]"
        await stack.settled()


async def test_an_error_after_a_comment_is_an_event(launch: Launch) -> None:
    async with launch(settings=ALIVE | {"timeouts": {"prefill": 0.3}}) as stack:
        stack.prefill[0].faults[GENERATE].append(Stall())
        _, others = await events(stack)
        assert others[0] == ": keep-alive"
        assert json.loads(others[-2])["error"]["code"] == 504
        assert others[-1] == "[DONE]"


async def test_whole_answers_and_requests_not_yet_validated_get_no_comments(launch: Launch) -> None:
    async with launch(settings=ALIVE) as stack:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
        for tier, stream in ((stack.prefill[0], False), (stack.render, True)):
            tier.hold.clear()
            ask = asyncio.create_task(stack.http.post("/v1/chat/completions", json=body | {"stream": stream}))
            await tier.waiting.wait()
            await asyncio.sleep(0.2)
            [exchange] = stack.services.exchanges
            assert exchange.outbox.unseen, "nothing has been sent"
            tier.hold.set()
            response = await ask
            assert response.status_code == 200
            assert stream or "keep-alive" not in response.text
            await stack.settled()
