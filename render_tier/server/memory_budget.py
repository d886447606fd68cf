"""Memory that requests hold for a while, bounded for all of them together."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from render_tier.server.pools import Overloaded


class MemoryBudget:
    """In bytes, for one event loop. First come, first served, so that a large request gets its turn."""

    def __init__(self, total: int, *, max_wait: float) -> None:
        """``max_wait``: seconds that a request may wait for others to give back."""
        self.total = total
        self.held = 0
        self._max_wait = max_wait
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, amount: int) -> None:
        """``amount``, which is no more than `total`, until it is given back. Raises Overloaded."""
        if not self._waiting and self.held + amount <= self.total:
            self.held += amount
            return
        entry = (amount, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(self._max_wait):
                await entry[1]
        except BaseException as error:
            if entry[1].cancelled():
                with suppress(ValueError):  # it was passed over already
                    self._waiting.remove(entry)
                self._admit()
            else:  # its turn came as it was given up
                self.give_back(amount)
            if isinstance(error, TimeoutError):
                raise Overloaded("too many images are in progress", retry_after=1) from None
            raise

    def give_back(self, amount: int) -> None:
        self.held -= amount
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            amount, turn = self._waiting[0]
            if turn.cancelled():  # by one that has not come to take itself out yet
                self._waiting.popleft()
            elif self.held + amount <= self.total:
                self._waiting.popleft()
                self.held += amount
                turn.set_result(None)
            else:
                return
