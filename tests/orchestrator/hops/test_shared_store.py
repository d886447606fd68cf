"""What a real Redis keeps for several orchestrators, and what it costs when it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from orchestrator.hops.shared_store import SharedStore, StoreDown, Taken
from tests.support.redis_server import PASSWORD, RedisServer


class Opened:
    def __init__(self, url: str, **options: Any) -> None:
        self.failures: list[str] = []
        self.clock = 0.0
        settings: dict[str, Any] = {"prefix": "t", "timeout": 5.0, "pause": 1.0, "connections": 4}
        self.store = SharedStore(
            url, **settings | options, now=lambda: self.clock, on_failed=self.failures.append
        )


@asynccontextmanager
async def opened(redis: RedisServer, **options: Any) -> AsyncIterator[Opened]:
    of = Opened(redis.url, **options)
    try:
        yield of
    finally:
        await of.store.close()


def always(*keys: str) -> Callable[[Any], list[str]]:
    return lambda _marks: list(keys)


async def test_what_one_puts_another_gets_until_its_time_is_over(redis: RedisServer) -> None:
    async with opened(redis) as one, opened(redis) as other, opened(redis, prefix="u") as stranger:
        await one.store.put("k", b"\x00value\xff", 60)
        assert await other.store.get("k") == b"\x00value\xff"
        assert await stranger.store.get("k") is None
        await one.store.put("k", b"brief", 0.02)
        while await other.store.get("k") is not None:
            await asyncio.sleep(0.01)


async def test_a_value_is_given_to_one_of_many_that_ask_at_once(redis: RedisServer) -> None:
    async with opened(redis) as one, opened(redis) as other:
        await one.store.put("k", b"value", 60)
        asked = [each.store.take_first(["m"], always("k")) for each in (one, other) * 20]
        taken = [found for found in await asyncio.gather(*asked) if found is not None]
        assert [(found.key, found.value) for found in taken] == [("k", b"value")]
        assert 0 < taken[0].seconds_left <= 60


async def test_the_first_that_is_there_is_taken_and_no_other(redis: RedisServer) -> None:
    async with opened(redis) as one:
        for key in ("b", "c"):
            await one.store.put(key, key.encode(), 60)
        found = await one.store.take_first(["m"], always("a", "b", "c"))
        assert isinstance(found, Taken)
        assert found.key == "b"
        assert await one.store.get("c") == b"c"


async def test_marks_of_several_values_are_in_one(redis: RedisServer) -> None:
    seen: list[list[bytes | None]] = []

    def look(marks: Any) -> list[str]:
        seen.append(list(marks))
        return []

    async with opened(redis) as one:
        await one.store.put("k", b"", 60, {"m": [0, 64], "n": [7]})
        await one.store.put("l", b"", 60, {"m": [9]})
        await one.store.take_first(["m", "n", "o"], look)
        assert seen == [[bytes([0x80, 0x40, 0, 0, 0, 0, 0, 0, 0x80]), b"\x01", None]]


async def test_one_that_hangs_costs_its_timeout_once_and_then_nothing(redis: RedisServer) -> None:
    async with opened(redis) as one:
        await one.store.put("k", b"value", 60)
        redis.stand_still()
        one.store.timeout = 0.05
        for _ in range(3):
            with pytest.raises(StoreDown):
                await one.store.get("k")
        assert one.failures == ["get"] * 3
        assert repr(one.store) == "<SharedStore down>"
        redis.go_on()
        one.store.timeout = 5.0
        one.clock = 1.0
        while await _down(one):
            one.clock += 1.0
        assert await one.store.get("k") == b"value"


async def test_what_was_given_up_is_answered_to_nobody(redis: RedisServer) -> None:
    async with opened(redis) as one:
        keys = [f"k{i}" for i in range(8)]
        for key in keys:
            await one.store.put(key, key.encode(), 60, {"m": [len(key)]})
        await asyncio.gather(*(one.store.get(key) for key in keys))
        redis.stand_still()
        one.store.timeout = 0.3
        given_up = [
            *(one.store.get(key) for key in keys[:4]),
            *(one.store.take_first(["m"], always(key)) for key in keys[4:]),
            *(one.store.put(f"new {key}", b"new", 60) for key in keys),
        ]
        ends = await asyncio.gather(*given_up, return_exceptions=True)
        assert {type(end) for end in ends} == {StoreDown}
        redis.go_on()
        one.store.timeout = 5.0
        one.clock = 1.0
        while await _down(one):
            one.clock += 1.0
        for _ in range(3):
            found = await asyncio.gather(*(one.store.get(key) for key in keys))
            assert found[:4] == [key.encode() for key in keys[:4]]
            assert all(value in (key.encode(), None) for key, value in zip(keys, found, strict=True))


async def _down(one: Opened) -> bool:
    try:
        await one.store.get("k")
    except StoreDown:
        return True
    return False


async def test_one_that_comes_back_is_asked_again(redis: RedisServer) -> None:
    async with opened(redis) as one:
        await one.store.put("k", b"value", 60)
        await asyncio.to_thread(redis.end)
        for ask in (
            one.store.get("k"),
            one.store.put("k", b"", 1),
            one.store.take_first(["m"], always("k")),
        ):
            one.clock += 1.0
            with pytest.raises(StoreDown):
                await ask
        assert one.failures == ["get", "put", "take"]


@pytest.mark.parametrize(
    "url",
    ["unix://:wrong-secret@{path}", "unix://user:wrong-secret@{path}", "redis://:wrong-secret@127.0.0.1:1/0"],
)
async def test_no_secret_is_told(redis: RedisServer, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = Opened(url.format(path=redis.socket))
    with structlog.testing.capture_logs() as logs, pytest.raises(StoreDown) as raised:
        await one.store.get("k")
    assert [(line["event"], line["operation"]) for line in logs] == [("store failed", "get")]
    told = repr((logs, raised.value, raised.value.__cause__, one.store)) + capsys.readouterr().out
    assert "wrong-secret" not in told
    assert PASSWORD not in told
    await one.store.close()


async def test_more_at_once_than_connections_wait_for_each_other(redis: RedisServer) -> None:
    async with opened(redis, connections=2) as one:
        await asyncio.gather(*(one.store.put(f"k{i}", b"value", 60) for i in range(50)))
        assert await asyncio.gather(*(one.store.get(f"k{i}") for i in range(50))) == [b"value"] * 50
        assert one.failures == []
