"""The follower of cache events against a real publisher: vLLM's protocol over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
import pytest
import zmq

from orchestrator.core.exact_index import LookedUp
from orchestrator.core.kv_events import AllBlocksCleared, BlockHash, BlockStored, KvEvent
from orchestrator.core.reported_cache import ReportedCache
from orchestrator.hops.kv_events import KvEventFollower, Limits
from tests.orchestrator.conftest import until

LIMITS = Limits(
    queued_messages=1000,
    message_bytes=100_000,
    replay_timeout=2.0,
    reconnect_first=0.02,
    reconnect_longest=0.1,
)
TOPIC = b"kv"


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


class Publisher:
    """An engine's side: numbers its messages, keeps the last ``kept`` of them, answers replays."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], port: int = 0, kept: int = 1000) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.replays = 0
        self._kept = kept
        self._next = 0
        # What the follower's arrival looks like from here: its subscription comes first.
        self._socket = context.socket(zmq.XPUB)
        self._socket.bind(f"tcp://127.0.0.1:{port}")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._router = context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:*")
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._answering = asyncio.create_task(self._answer())

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    async def subscribed(self) -> None:
        await until(lambda: bool(self._socket.poll(0)))
        assert self._socket.recv() == b"\1" + TOPIC

    def publish(self, *events: KvEvent, lost: bool = False) -> None:
        self.publish_bytes(msgspec.msgpack.encode([0.0, list(events), 0]), lost=lost)

    def publish_bytes(self, payload: bytes, *, lost: bool = False) -> None:
        number, self._next = self._next, self._next + 1
        self.sent = [*self.sent, (number, payload)][-self._kept :]
        if not lost:
            self.send(TOPIC, number.to_bytes(8, "big"), payload)

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    async def _answer(self) -> None:
        while True:
            await until(lambda: bool(self._router.poll(0)))
            who, empty, start = self._router.recv_multipart()
            self.replays += 1
            for number, payload in self.sent:
                if number >= int.from_bytes(start, "big"):
                    self._router.send_multipart([who, b"", TOPIC, number.to_bytes(8, "big"), payload])
            self._router.send_multipart([who, empty, b"", (-1).to_bytes(8, "big", signed=True), b""])

    async def close(self) -> None:
        self._answering.cancel()
        await asyncio.wait([self._answering])
        self._router.close(linger=0)
        self._socket.close(linger=0)


@contextlib.asynccontextmanager
async def publishing(
    context: zmq.Context[zmq.Socket[bytes]], port: int = 0, kept: int = 1000
) -> AsyncIterator[Publisher]:
    publisher = Publisher(context, port, kept)
    try:
        yield publisher
    finally:
        await publisher.close()


@contextlib.asynccontextmanager
async def following(
    context: zmq.Context[zmq.Socket[bytes]],
    publisher: Publisher,
    *,
    replay: bool = True,
    cache: ReportedCache | None = None,
) -> AsyncIterator[ReportedCache]:
    cache = cache or ReportedCache(100_000, 8, 0.25)
    follower = KvEventFollower(
        "http://p0",
        cache,
        context,
        publisher.endpoint,
        publisher.replay_endpoint if replay else None,
        TOPIC.decode(),
        LIMITS,
    )
    task = asyncio.create_task(follower.run())
    try:
        await publisher.subscribed()
        yield cache
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


def block(*ids: int) -> BlockStored:
    hashes: list[BlockHash] = [repr(ids[: end + 2]).encode() for end in range(0, len(ids), 2)]
    return BlockStored(hashes, None, list(ids), 2, "GPU")


def known(cache: ReportedCache, *ids: int) -> int | None:
    return cache.predict(LookedUp.of([*ids, 0], most=100))


async def test_events_arrive(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async with publishing(context) as publisher, following(context, publisher, replay=False) as cache:
        publisher.publish(block(1, 2, 3, 4))
        await until(lambda: known(cache, 1, 2, 3, 4) == 4)
        publisher.publish(AllBlocksCleared(), block(1, 2))
        await until(lambda: known(cache, 1, 2, 3, 4) == 2)
        assert cache.trusted
        assert not cache.losses


async def test_an_idle_engine_is_believed_to_hold_nothing(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async with publishing(context) as publisher, following(context, publisher) as cache:
        await until(lambda: cache.trusted)
        assert known(cache, 1, 2) == 0


async def test_what_was_before_the_subscription_is_replayed(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    async with publishing(context) as publisher:
        for i in range(50):
            publisher.publish(block(i, i))
        async with following(context, publisher) as cache:
            await until(lambda: known(cache, 49, 49) == 2)
            assert known(cache, 0, 0) == 2
            assert cache.trusted


async def test_a_gap_is_filled(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async with publishing(context) as publisher, following(context, publisher) as cache:
        await until(lambda: publisher.replays == 1)
        publisher.publish(block(1, 1))
        publisher.publish(block(2, 2), lost=True)
        publisher.publish(block(3, 3))
        await until(lambda: known(cache, 3, 3) == 2)
        assert (known(cache, 1, 1), known(cache, 2, 2)) == (2, 2)
        assert cache.trusted
        assert publisher.replays == 2


@pytest.mark.parametrize("replay", [True, False])
async def test_a_gap_that_cannot_be_filled_costs_the_index(
    context: zmq.Context[zmq.Socket[bytes]], replay: bool
) -> None:
    async with (
        publishing(context, kept=1) as publisher,
        following(context, publisher, replay=replay) as cache,
    ):
        publisher.publish(block(1, 1))
        await until(lambda: known(cache, 1, 1) == 2)
        for lost in (True, True, False):
            publisher.publish(block(2, 2), lost=lost)
        await until(lambda: known(cache, 2, 2) == 2)
        assert known(cache, 1, 1) == 0
        assert not cache.trusted
        assert cache.losses == {"gap": 1}
        publisher.publish(AllBlocksCleared())
        await until(lambda: cache.trusted)


@pytest.mark.parametrize("replay", [True, False])
async def test_an_engine_that_restarts_takes_its_index_along(
    context: zmq.Context[zmq.Socket[bytes]], replay: bool
) -> None:
    async with publishing(context) as publisher, contextlib.AsyncExitStack() as exits:
        cache = await exits.enter_async_context(following(context, publisher, replay=replay))
        for i in range(3):
            publisher.publish(block(i, i))
        await until(lambda: known(cache, 2, 2) == 2)
        port = publisher.port
        await publisher.close()
        await until(lambda: known(cache, 2, 2) is None)
        assert not cache.trusted
        assert cache.losses == {"disconnected": 1}
        async with publishing(context, port) as after:
            await after.subscribed()
            after.publish(block(7, 7))
            await until(lambda: known(cache, 7, 7) == 2)
            assert known(cache, 2, 2) == 0
            assert cache.trusted
            assert cache.losses == {"disconnected": 1}


async def test_garbage_costs_the_index_and_nothing_else(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async with publishing(context) as publisher, following(context, publisher, replay=False) as cache:
        garbage: list[tuple[bytes, ...]] = [
            (TOPIC,),
            (TOPIC, b"short", b""),
            (TOPIC, b"\xff" * 8, b""),
            (TOPIC, b"\0" * 8, b"", b"more"),
        ]
        for frames in garbage:
            publisher.publish(AllBlocksCleared(), block(1, 1))
            await until(lambda: known(cache, 1, 1) == 2)
            publisher.send(*frames)
            await until(lambda: known(cache, 1, 1) is None)
        publisher.publish(AllBlocksCleared())
        await until(lambda: cache.trusted)
        publisher.publish_bytes(b"\xc1 garbage")
        await until(lambda: not cache.trusted)
        assert cache.losses == {"garbled": 5}
        publisher.publish(AllBlocksCleared(), block(2, 2))
        await until(lambda: cache.trusted)
        assert known(cache, 2, 2) == 2


class Broken(ReportedCache):
    """Fails at its second message, in a way that nobody has thought of."""

    left = 1

    def take(self, number: int, events: Sequence[KvEvent]) -> None:
        self.left -= 1
        if self.left == -1:
            raise RuntimeError
        super().take(number, events)


async def test_no_failure_ends_the_following(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async with publishing(context) as publisher:
        broken = Broken(100_000, 8, 0.25)
        async with following(context, publisher, replay=False, cache=broken) as cache:
            publisher.publish(block(1, 1))
            await until(lambda: cache.trusted)
            publisher.publish(block(2, 2))
            await until(lambda: not cache.trusted)
            assert known(cache, 1, 1) is None
            while known(cache, 3, 3) != 2:  # it subscribes again
                publisher.publish(AllBlocksCleared(), block(3, 3))
                await asyncio.sleep(0.02)
            assert cache.trusted


async def test_a_message_beyond_the_bound_is_not_read(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    async with publishing(context) as publisher, following(context, publisher, replay=False) as cache:
        publisher.publish(block(1, 1))
        await until(lambda: cache.trusted)
        publisher.publish_bytes(b"x" * (LIMITS.message_bytes + 1))
        await until(lambda: not cache.trusted)
        assert set(cache.losses) == {"disconnected"}


async def test_a_flood_leaves_the_loop_to_others(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Between the first and the last message of a flood the loop has many turns."""
    async with publishing(context) as publisher:
        for i in range(900):
            publisher.publish(*(block(i, j) for j in range(20)))
        turns = 0
        async with following(context, publisher) as cache:
            while known(cache, 899, 19) != 2:
                turns += len(cache.index) > 0
                await asyncio.sleep(0)
            assert turns > 3
            assert known(cache, 0, 0) == 2
