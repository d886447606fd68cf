"""Several orchestrators that keep turns and conversations for each other in a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from orchestrator.settings import Settings, merged
from tests.orchestrator.conftest import QUICK, Launch, Stack, running
from tests.orchestrator.server.test_conversations import FIRST as FIRST_TURN
from tests.orchestrator.server.test_conversations import carried, say
from tests.orchestrator.server.test_kept_turns import FIRST, ON, complete, read, results
from tests.support.redis_server import PASSWORD, RedisServer


def sharing(redis: RedisServer, **store: Any) -> dict[str, Any]:
    return ON | {"store": {"url": redis.url, "timeout": 5.0} | store}


@asynccontextmanager
async def beside(stack: Stack, settings: dict[str, Any], followed: float = 60.0) -> AsyncIterator[Stack]:
    """Another orchestrator over the same members, which it has ``followed`` for so many seconds."""
    members = {role: [tier.url for tier in getattr(stack, role)] for role in ("prefill", "decode")}
    members["render"] = [tier.url for tier in stack.renders]
    config = Settings.model_validate(merged(merged(QUICK, settings), {"members": members}))
    async with running(config) as (server, services, port):
        for member in services.decode_pool.members:
            member.same_since -= followed
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            yield replace(stack, url=url, services=services, http=http, server=server)


async def kept(stack: Stack) -> None:
    """Until what decode left is in the store."""
    while not results(stack, "kept_turns"):
        await asyncio.sleep(0.005)


async def test_another_orchestrator_reads_what_one_has_left(launch: Launch, redis: RedisServer) -> None:
    on = sharing(redis)
    async with launch(settings=on) as one, beside(one, on) as other:
        turn = [*await complete(one, FIRST), 5]
        await kept(one)
        await complete(other, turn)
        await complete(other, turn)
        first, second, third = read(one)
        assert (first, third) == (None, None), "it is given out once"
        assert second is not None
        assert second["remote_num_tokens"] == len(turn) - 2
        assert results(other) == {"used": 1, "not_a_prefix": 1}
        assert results(one) == {"nothing_held": 1}
        await one.settled()
        await other.settled()


async def test_of_many_that_ask_at_once_one_reads(launch: Launch, redis: RedisServer) -> None:
    on = sharing(redis)
    async with launch(settings=on) as one, beside(one, on) as other:
        turn = [*await complete(one, FIRST), 5]
        await kept(one)
        for member in one.services.decode_pool.members:
            member.same_since -= 60
        await asyncio.gather(*(complete(each, turn) for each in (one, other) * 5))
        assert len([params for params in read(one) if params is not None]) == 1
        await one.settled()


async def test_another_tenant_reads_nothing(launch: Launch, redis: RedisServer) -> None:
    on = sharing(redis)
    async with launch(settings=on) as one, beside(one, on) as other:
        turn = [*await complete(one, FIRST, {"X-Tenant-Id": "a"}), 5]
        await kept(one)
        await complete(other, turn, {"X-Tenant-Id": "b"})
        assert read(one) == [None, None]
        await complete(other, turn, {"X-Tenant-Id": "a"})
        assert read(one)[2] is not None


async def test_who_has_not_seen_that_the_engine_stayed_the_same_reads_nothing(
    launch: Launch, redis: RedisServer
) -> None:
    on = sharing(redis)
    async with launch(settings=on) as one:
        turn = [*await complete(one, FIRST), 5]
        await kept(one)
        async with beside(one, on, followed=0) as later:
            await complete(later, turn)
            assert results(later) == {"engine_gone": 1}
        assert read(one) == [None, None]


async def test_an_engine_that_has_died_since(launch: Launch, redis: RedisServer) -> None:
    on = sharing(redis)
    async with launch(settings=on) as one, beside(one, on) as other:
        turn = [*await complete(one, FIRST), 5]
        await kept(one)
        [holder] = one.decode
        holder.healthy = False
        await other.services.check_health()
        holder.healthy = True
        await other.services.check_health()
        await complete(other, turn)
        assert results(other) == {"engine_gone": 1}


@pytest.mark.parametrize("how", ["hangs", "is gone"])
async def test_without_its_store_everything_is_computed(launch: Launch, redis: RedisServer, how: str) -> None:
    async with launch(settings=sharing(redis, pause=60.0)) as stack:
        turn = [*await complete(stack, FIRST), 5]
        await kept(stack)
        if how == "hangs":
            redis.stand_still()
            assert stack.services.store is not None
            stack.services.store.timeout = 0.1
        else:
            await asyncio.to_thread(redis.end)
        await complete(stack, turn)
        _, body, _ = await say(stack, "xx")
        assert body["continuation"]["reason"] == "store_unavailable"
        status, body, _ = await say(stack, "xx", continuation_strict=True)
        assert (status, body["error"]["param"]) == (503, "conversation_id")
        assert read(stack) == [None] * 3
        assert results(stack) == {"nothing_held": 2, "store_unavailable": 1}
        assert results(stack, "kept_turns") == {"kept": 1, "store_unavailable": 1, "short": 1}
        [family] = stack.services.metrics.store_failures.collect()
        failed = {s.labels["operation"]: s.value for s in family.samples if s.name.endswith("_total")}
        assert failed == {"take": 1, "get": 2, "put": 2}
        await stack.settled()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_conversation_goes_on_at_another_orchestrator(
    launch: Launch, redis: RedisServer, stream: bool
) -> None:
    on = sharing(redis)
    async with launch(settings=on) as one, beside(one, on) as other:
        await say(one, "xx", "xxx", stream=stream)
        await say(other, "xx", "xxx", "xxxx")
        await say(other, "xx", "xxx", "xxxx", headers={"X-Tenant-Id": "b"})
        assert carried(one) == [None, FIRST_TURN, None]


async def test_the_stores_password_is_not_told(
    launch: Launch, redis: RedisServer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with launch(settings=sharing(redis)) as stack:
        await complete(stack, FIRST)
        await say(stack, "xx", "xxx")
        pages = [(await stack.http.get(path)).text for path in ("/status", "/metrics")]
        assert PASSWORD not in "".join([*pages, capsys.readouterr().out, caplog.text])
