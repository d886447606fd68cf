"""The record of an answer: what engines report, and only of the attempt that the client saw."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from render_tier.protocol.record import Record, RecordedChoice
from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, GENERATE, HalfClose

ASK = {
    "messages": [{"role": "user", "content": "one two three"}],
    "max_tokens": 4,
    "return_token_ids": True,
}


async def recorded(stack: Stack, **more: Any) -> RecordedChoice:
    body: dict[str, Any] = (
        ASK | more | {"stream_options": {"include_usage": True} if more.get("stream") else None}
    )
    reply = await stack.http.post(CHAT, json=body)
    assert reply.status_code == 200
    answer = reply.json() if not body.get("stream") else None
    if answer is None:
        answer = json.loads(reply.text.split("\n\n")[-3].removeprefix("data: "))
        assert answer["choices"] == []
    [response] = msgspec.convert(answer["record"], Record).generate_responses
    assert response.prompt_token_ids == [3, 3, 5]
    [choice] = response.choices
    return choice


@pytest.mark.parametrize("stream", [False, True])
async def test_weight_versions_are_in_it(launch: Launch, stream: bool) -> None:
    async with launch() as stack:
        spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 4}]
        stack.decode[0].weight_versions = spans
        choice = await recorded(stack, stream=stream)
        assert msgspec.to_builtins(choice.weight_versions) == spans
        assert choice.token_ids == [100, 101, 102, 103]
        assert sum(choice.chunk_lens) == 4
        assert (choice.finish_reason, choice.stop_reason) == ("length", None)
        await stack.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_attempt_that_failed_before_the_client_saw_it_is_not_in_it(
    launch: Launch, stream: bool
) -> None:
    async with launch(decode=2) as stack:
        faults = [HalfClose()]
        for tier in stack.decode:
            tier.plan = lambda _path, _body: faults.pop() if faults else None
        choice = await recorded(stack, stream=stream)
        assert not faults
        assert choice.token_ids == [100, 101, 102, 103]
        await stack.settled()


async def test_a_stream_that_went_on_elsewhere_has_one_record(launch: Launch) -> None:
    async with launch(prefill=1, decode=2, settings={"policy": {"continuations": 1}}) as stack:
        for tier in stack.decode:
            tier.weight_versions = [{"version": "8", "start": 0, "end": 2}]
        faults = [HalfClose(after=2)]
        for tier in stack.decode:
            tier.plan = lambda _path, _body: faults.pop() if faults else None
        choice = await recorded(stack, stream=True)
        assert choice.token_ids == [100, 101, 102, 103]
        # Of what the second engine sampled; the first did not come to say.
        assert msgspec.to_builtins(choice.weight_versions) == [{"version": "8", "start": 2, "end": 4}]
        assert sum(len(tier.requests[GENERATE]) for tier in stack.decode) == 2
        await stack.settled()
