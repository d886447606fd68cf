"""Frames reach the client in order and once, sent at once where nobody has to wait, held where the client is
slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.server.direct_send import DirectSend
from orchestrator.server.outbox import Outbox
from render_tier.protocol.errors import Unavailable


class Client:
    """An ASGI ``send`` that waits, like uvicorn's, while the client is slow."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ready = asyncio.Event()
        self.ready.set()

    async def send(self, message: Any) -> None:
        await self.ready.wait()
        self.got.append(message["body"])


async def consume(outbox: Outbox, client: Client) -> None:
    frames = await outbox.next()
    outbox.direct = DirectSend(client.send)
    while frames is not None:
        await client.send({"body": frames})
        frames = await outbox.next()


async def started(outbox: Outbox, client: Client) -> asyncio.Task[None]:
    task = asyncio.create_task(consume(outbox, client))
    outbox.put(b"0")
    while client.got != [b"0"]:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_frame_is_sent_at_once_while_the_consumer_waits() -> None:
    outbox, client = Outbox(2), Client()
    task = await started(outbox, client)
    outbox.put(b"1")
    outbox.put(b"2")
    assert client.got == [b"0", b"1", b"2"]
    outbox.end()
    await task


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_what_a_slow_client_holds_up_comes_in_order_and_once(before: int) -> None:
    outbox, client = Outbox(2), Client()
    task = await started(outbox, client)
    sent = [b"0"]
    for number in range(before):
        sent.append(b"%d" % number)
        outbox.put(sent[-1])
    client.ready.clear()
    drained: list[int] = []
    outbox.put(b"a")  # begun, and waits
    assert not outbox.full
    outbox.put(b"b")
    outbox.put(b"c")
    assert outbox.full
    outbox.when_drained(lambda: drained.append(1))
    await asyncio.sleep(0.01)
    assert client.got == sent
    assert not drained
    client.ready.set()
    while not drained:
        await asyncio.sleep(0)
    while len(client.got) < len(sent) + 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    outbox.put(b"d")
    outbox.end()
    await task
    assert b"".join(client.got) == b"".join(sent) + b"abcd"


async def test_the_end_comes_after_what_was_begun() -> None:
    outbox, client = Outbox(2), Client()
    task = await started(outbox, client)
    client.ready.clear()
    outbox.put(b"a")
    outbox.fail(Unavailable("x"), b"last words")
    await asyncio.sleep(0.01)
    assert not task.done()
    client.ready.set()
    await task
    assert client.got == [b"0", b"a", b"last words"]


async def test_a_client_that_leaves_while_it_is_slow_holds_up_nobody() -> None:
    outbox, client = Outbox(1), Client()
    task = await started(outbox, client)
    client.ready.clear()
    outbox.put(b"a")
    outbox.put(b"b")
    told: list[int] = []
    outbox.when_drained(lambda: told.append(1))
    outbox.close()
    assert told
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    outbox.put(b"c")
    assert client.got == [b"0"]
