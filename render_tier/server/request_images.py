"""The images of one request, and the memory and threads that it holds for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from render_tier.multimodal.vision import PromptImage
from render_tier.protocol.errors import PayloadTooLarge
from render_tier.rendering.image_parts import ImagePart
from render_tier.server.memory_budget import MemoryBudget
from render_tier.server.pools import WorkPool

Result = TypeVar("Result")
FETCHES = 8
"""Of one request at a time."""


class RequestImages:
    """One request's images, and the memory that it holds for them. ``jobs``: how many of its jobs are with
    the threads or wait for one, at a time."""

    def __init__(self, jobs: int = 1) -> None:
        self.images: list[PromptImage] = []
        self.named: list[tuple[str, bytes, ImagePart]] = []
        """What engines are told for the client's names, and the keys of the images that those are to stand
        for."""
        self.fetching = asyncio.Semaphore(FETCHES)
        self._jobs = asyncio.Semaphore(jobs)
        self._held: list[tuple[MemoryBudget, int]] = []
        self._files_left = 0
        self.tokens = 0
        """Of those that are loaded."""

    async def run(self, pool: WorkPool, work: Callable[[], Result]) -> Result:
        """As the pool does. What else the request has for it waits here: no request is refused, and nobody
        waits, for the number of its images."""
        async with self._jobs:
            return await pool.run(work)

    async def take_for_files(self, budget: MemoryBudget, at_most: int) -> None:
        """Raises Overloaded."""
        self._files_left = min(at_most, budget.total)
        await budget.take(self._files_left)
        self._held.append((budget, self._files_left))

    def received(self, data: bytes) -> None:
        """Raises PayloadTooLarge when there is more than what was taken for it."""
        self._files_left -= len(data)
        if self._files_left < 0:
            raise PayloadTooLarge("the files of the prompt's images are too large together", param="messages")

    async def take_for_items(self, budget: MemoryBudget, amount: int) -> None:
        """Raises Overloaded, and PayloadTooLarge for more than there ever is."""
        if amount > budget.total:
            raise PayloadTooLarge(
                f"the images of the prompt take {amount} bytes, of which {budget.total} are allowed",
                param="messages",
            )
        await budget.take(amount)
        self._held.append((budget, amount))

    def release(self) -> None:
        while self._held:
            budget, amount = self._held.pop()
            budget.give_back(amount)
