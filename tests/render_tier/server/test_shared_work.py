"""Work that several want is done once, and given up when nobody wants it any more."""

from __future__ import annotations

import asyncio

import pytest

from render_tier.server.shared_work import SharedWork


class Work:
    """Begun so often, and ended by `go_on`; what is cancelled takes until then."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> int:
        self.begun += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            await self.go_on.wait()
            raise
        if self.begun > 1:
            raise ValueError("done already")
        return self.begun


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_who_want_it_get_what_was_done_once() -> None:
    shared, work = SharedWork[str, int](), Work()
    asking = [asyncio.create_task(shared.result("a", work)) for _ in range(3)]
    await turns()
    asking[0].cancel()
    await asyncio.wait([asking[0]])
    assert not work.cancelled
    work.go_on.set()
    assert await asyncio.gather(*asking[1:]) == [1, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="done already"):
            await shared.result("a", work)
    assert work.begun == 3


async def test_the_last_who_gives_it_up_waits_for_its_end() -> None:
    shared, work = SharedWork[str, int](), Work()
    asking = [asyncio.create_task(shared.result("a", work)) for _ in range(2)]
    await turns()
    for task in asking:
        task.cancel()
    await turns()
    assert work.cancelled
    assert [task.done() for task in asking] == [True, False]
    # What is given up is nothing to wait for.
    other = Work()
    other.go_on.set()
    assert await shared.result("a", other) == 1
    work.go_on.set()
    await asyncio.wait(asking)
    assert asking[1].cancelled()
