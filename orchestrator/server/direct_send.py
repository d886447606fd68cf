"""Sending to a client from a callback: an ASGI ``send`` is carried out at once as far as it goes without
waiting, which is to its end unless the client is slow. That spares each chunk the waking of a task.

An awaitable runs until it yields what it waits for; asyncio's task then goes on with it when that is there.
So one that has yielded can be handed to a task by yielding the same thing again first.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from starlette.types import Send


class DirectSend:
    """Of the body of one response, whose start has been sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._rest: _Rest | None = None

    def __call__(self, body: bytes) -> bool:
        """Whether that was all; otherwise ``finish`` must be awaited before anything else is sent."""
        work = self._send({"type": "http.response.body", "body": body, "more_body": True}).__await__()
        try:
            waits_for = next(work)
        except StopIteration:
            return True
        self._rest = _Rest(waits_for, work)
        return False

    async def finish(self) -> None:
        """What has been begun and had to wait, if anything."""
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest


class _Rest:
    def __init__(self, waits_for: Any, work: Generator[Any, None, Any]) -> None:
        self._waits_for = waits_for
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        yield self._waits_for
        yield from self._work
