"""A request is freed when it is over, without the collector of garbage: what waits for that is memory that
grows from one collection to the next."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, GENERATE, Status

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 5}


async def ask(stack: Stack, expected: int = 200, **options: Any) -> None:
    answer = await stack.http.post("/v1/chat/completions", json=ASKED | options)
    assert answer.status_code == expected


async def leave(stack: Stack) -> None:
    async with stack.http.stream(
        "POST", "/v1/chat/completions", json=ASKED | {"stream": True, "max_tokens": 1000}
    ) as answer:
        async for _ in answer.aiter_raw():
            return


async def refused(stack: Stack) -> None:
    stack.render.faults[f"{CHAT}/render"].append(Status(400))
    await ask(stack, 400)


async def retried(stack: Stack) -> None:
    stack.prefill[0].faults[GENERATE].append(Status(503))
    stack.prefill[1].faults[GENERATE].append(Status(503))
    stack.decode[0].faults[GENERATE].append(Status(503))
    await ask(stack)


KINDS: dict[str, Callable[[Stack], Awaitable[None]]] = {
    "whole": ask,
    "streamed": lambda stack: ask(stack, stream=True),
    "two choices": lambda stack: ask(stack, n=2, stream=True),
    "stopped early": lambda stack: ask(stack, stop=["t102"], stream=True),
    "refused": refused,
    "left": leave,
    "retried": retried,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_is_over_is_freed_at_once(launch: Launch, kind: str) -> None:
    settings = {"policy": {"prefill_failure": "recompute"}}
    async with launch(prefill=2, decode=2, pace=0.001, settings=settings) as stack:
        await KINDS[kind](stack)  # what is made once and kept
        await stack.settled()
        gc.collect()
        gc.disable()
        try:
            await KINDS[kind](stack)
            await stack.settled()
            await asyncio.sleep(0.05)  # the answer's last callbacks
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [each for each in gc.garbage if type(each).__module__.startswith("orchestrator.")]
            assert not left
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
