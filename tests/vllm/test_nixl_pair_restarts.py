"""Engines of a pair that die and come back at the same address: right answers or honest errors within a
bound, and the surviving engine is well. The last test leaves the prefill engine dead."""

from __future__ import annotations

import asyncio

import httpx

from tests.support import vllm
from tests.support.completions import Answer, ask, body, client
from tests.support.pd_stack import FREE, IDLE, Stack, becomes_free, eventually, ready

HONEST = (500, 502, 503)


def is_honest(reply: httpx.Response) -> bool:
    return reply.status_code in HONEST and set(reply.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_prefill_engine_that_dies_and_comes_back(
    stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    """It comes back as another engine, since engine ids are random; the decode engine takes it for one."""
    few = range(22, 30)
    async with client(stack.apart) as http:
        asked = [asyncio.create_task(http.post("/completions", json=body(prompts[i]))) for i in few]
        # One is complete then; the others are anywhere before that.
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=120)
        stack.pair.prefill.kill()
        replies = await asyncio.wait_for(asyncio.gather(*asked), 120)
        late = await asyncio.wait_for(http.post("/completions", json=body(prompts[0])), 60)
    for i, reply in zip(few, replies, strict=True):
        if reply.status_code == 200:
            assert reply.json()["choices"][0]["token_ids"] == colocated[i].token_ids
        else:
            assert is_honest(reply), reply.text
    assert 200 in {reply.status_code for reply in replies}
    assert late.status_code == 503, late.text
    async with client(stack.together) as http:
        assert await ask(http, body(prompts[0]), False) == [colocated[0]]
    becomes_free((stack.apart, IDLE), (stack.pair.decode, FREE))

    vllm.restart(stack.pair.prefill)
    await eventually(lambda: ready(stack.apart), "the orchestrator does not see it")
    async with client(stack.apart) as http:
        assert await ask(http, body(prompts[23]), False) == [colocated[23]]
    becomes_free((stack.apart, IDLE), (stack.pair.decode, FREE), (stack.pair.prefill, FREE))


async def test_a_decode_engine_that_dies_and_comes_back(
    stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    long = {"ignore_eos": True, "max_tokens": 1500}
    lines: list[str] = []
    streaming = asyncio.Event()

    async def streamed() -> None:
        sent = body(prompts[1], stream=True, **long)
        async with client(stack.apart) as http, http.stream("POST", "/completions", json=sent) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                lines.append(line)
                if len(lines) > 4:
                    streaming.set()

    async with client(stack.apart) as http:
        stream = asyncio.create_task(streamed())
        whole = asyncio.create_task(http.post("/completions", json=body(prompts[2], **long)))
        await asyncio.wait_for(streaming.wait(), 120)
        stack.pair.decode.kill()
        reply = await asyncio.wait_for(whole, 120)
        await asyncio.wait_for(stream, 120)
        late = await asyncio.wait_for(http.post("/completions", json=body(prompts[0])), 60)
    assert is_honest(reply), reply.text
    error, done = [line for line in lines if line][-2:]
    assert error.startswith('data: {"error"')
    assert done == "data: [DONE]"
    assert is_honest(late), late.text
    # What was held for the whole answer's second attempt may have to wait for its lease.
    becomes_free((stack.apart, IDLE))

    vllm.restart(stack.pair.decode)
    await eventually(lambda: ready(stack.together), "the orchestrator does not see it")
    async with client(stack.together) as http:
        assert await ask(http, body(prompts[0]), False) == [colocated[0]]
    becomes_free((stack.together, IDLE), (stack.pair.decode, FREE), (stack.pair.prefill, FREE), within=60)


async def test_a_prefill_engine_that_dies_before_its_kv_is_pulled(
    stack: Stack, prompts: list[list[int]], colocated: list[Answer]
) -> None:
    """By a decode engine that has never met it, which looks for it for 5 seconds."""
    stack.prefill_box.hold()
    async with client(stack.watched) as http:
        asked = [
            asyncio.create_task(http.post("/completions", json=body(prompts[i], stream=stream)))
            for i, stream in ((3, False), (4, True))
        ]
        await eventually(lambda: stack.prefill_box.waiting == 2, "no answer is held")
        stack.pair.prefill.kill()
        stack.prefill_box.release()
        replies = await asyncio.wait_for(asyncio.gather(*asked), 120)
    for reply in replies:
        assert is_honest(reply), reply.text
    assert stack.decode_box.requests, "the KV was asked for"
    becomes_free((stack.watched, IDLE), (stack.pair.decode, FREE))
    async with client(stack.together) as http:
        assert await ask(http, body(prompts[0]), False) == [colocated[0]]
