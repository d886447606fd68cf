"""The hops against answers recorded from a real tokens-only engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from aiohttp import web

from orchestrator.hops.connections import Connections
from orchestrator.hops.decode import DecodeClient
from orchestrator.hops.errors import HopError, Refused, TimedOut, Unreachable
from orchestrator.hops.messages import EngineAnswer
from orchestrator.hops.prefill import PrefillClient, abort
from orchestrator.hops.transport import Transport
from tests.support.corpus import exchanges

RECORDED = {
    e["name"]: e for e in exchanges("engine_generate2") if e["request"]["path"] == "/inference/v1/generate"
}
STREAMS = [name for name, e in RECORDED.items() if isinstance(e["response"]["body"], str)]
REFUSALS = [name for name, e in RECORDED.items() if e["response"]["status"] >= 400]


def transport(counts: list[int] | None = None) -> Transport:
    return Transport(
        connect_timeout=1, keepalive=1, max_reply_bytes=10**7, max_error_bytes=10**5,
        on_exchange=None if counts is None else counts.append,
    )  # fmt: skip


@asynccontextmanager
async def decoding(counts: list[int] | None = None) -> AsyncIterator[DecodeClient]:
    connections = Connections(connect_timeout=1, keepalive=1)
    try:
        yield DecodeClient(
            connections, first_timeout=5, idle_timeout=5, max_event_bytes=10**6, max_error_bytes=10**5,
            on_exchange=lambda change: None if counts is None else counts.append(change),
        )  # fmt: skip
    finally:
        await connections.close()


async def decoded(client: DecodeClient, url: str) -> list[EngineAnswer]:
    answers: list[EngineAnswer] = []
    await client.decode(url, {}, {}, answers.append).run()
    return answers


@asynccontextmanager
async def engine(name: str, cut: int = 0) -> AsyncIterator[str]:
    """Plays one recorded answer; a stream comes in pieces of ``cut`` bytes."""
    recorded = RECORDED[name]["response"]

    async def answer(request: web.Request) -> web.StreamResponse:
        body = recorded["body"]
        if not isinstance(body, str):
            return web.json_response(body, status=recorded["status"])
        response = web.StreamResponse(headers={"Content-Type": recorded["headers"]["content-type"]})
        await response.prepare(request)
        data = body.encode()
        for start in range(0, len(data), cut or len(data)):
            await response.write(data[start : start + (cut or len(data))])
        return response

    app = web.Application()
    app.router.add_post("/inference/v1/generate", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def token_ids(name: str) -> dict[int, list[int]]:
    """By choice, as the recording has them."""
    tokens: dict[int, list[int]] = {}
    for line in RECORDED[name]["response"]["body"].split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                tokens.setdefault(choice["index"], []).extend(choice["token_ids"])
    return tokens


@pytest.mark.parametrize("cut", [0, 1, 7])
@pytest.mark.parametrize("name", STREAMS)
async def test_streams_in_any_pieces(name: str, cut: int) -> None:
    tokens: dict[int, list[int]] = {}
    usage: Any = None
    async with engine(name, cut) as url, decoding() as client:
        for answer in await decoded(client, url):
            usage = answer.usage or usage
            for choice in answer.choices:
                tokens.setdefault(choice.index, []).extend(choice.token_ids or [])
    assert tokens == token_ids(name)
    if "include_usage" in json.dumps(RECORDED[name]["request"]["body"]):
        assert usage.completion_tokens == sum(map(len, tokens.values()))


def test_streams_in_the_servers_own_event_loop() -> None:
    async def read() -> list[EngineAnswer]:
        async with engine(STREAMS[0], 7) as url, decoding() as client:
            await decoded(client, url)
            return await decoded(client, url)

    answers = uvloop.run(read())
    assert sum(len(c.token_ids or []) for a in answers for c in a.choices) == sum(
        map(len, token_ids(STREAMS[0]).values())
    )


@pytest.mark.parametrize("name", REFUSALS)
async def test_refusals_keep_status_type_message_and_param(name: str) -> None:
    counts: list[int] = []
    client = transport(counts)
    expected = RECORDED[name]["response"]["body"]["error"]
    async with engine(name) as url, decoding(counts) as decode:
        with pytest.raises(Refused) as decode_error:
            await decoded(decode, url)
        with pytest.raises(Refused) as prefill_error:
            await PrefillClient(client).prefill(url, {}, {}, 5)
    for raised in (decode_error, prefill_error):
        body = json.loads(raised.value.encode())["error"]
        assert body == expected
        assert not raised.value.retry_safe
    assert sum(counts) == 0
    await client.close()


async def test_a_whole_reply_is_one_answer() -> None:
    client = transport()
    async with engine("gen_lp") as url, decoding() as decode:
        [answer] = await decoded(decode, url)
        prefilled = await PrefillClient(client).prefill(url, {}, {}, 5)
    recorded = RECORDED["gen_lp"]["response"]["body"]
    assert answer.choices[0].token_ids == recorded["choices"][0]["token_ids"]
    assert json.loads(bytes(answer.prompt_logprobs)) == recorded["prompt_logprobs"]
    assert prefilled.finish_reason == "length"
    assert prefilled.kv_params is None
    assert prefilled.prompt_logprobs is not None
    await client.close()


async def test_nobody_listens() -> None:
    client = transport()
    with pytest.raises(Unreachable) as raised:
        await PrefillClient(client).prefill("http://127.0.0.1:9", {}, {}, 5)
    assert raised.value.retry_safe
    with pytest.raises(HopError):
        await abort(client, "decode", "http://127.0.0.1:9", "x", 5)
    await client.close()


async def test_a_hop_that_has_no_time_left_is_not_started() -> None:
    counts: list[int] = []
    client = transport(counts)
    with pytest.raises(TimedOut):
        await PrefillClient(client).prefill("http://127.0.0.1:9", {}, {}, 0)
    assert counts == []
    await client.close()


async def test_an_answer_over_the_bound_is_refused() -> None:
    client = transport()
    client._max_reply_bytes = 100
    async with engine("gen") as url:
        with pytest.raises(HopError, match="too large"):
            await PrefillClient(client).prefill(url, {}, {}, 5)
    await client.close()
