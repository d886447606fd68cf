"""What a request has for its client and the client has not yet been sent: frames, then an end or an error.

Producers look whether it is ``full`` and wait for ``when_drained``; that is how a slow client slows the
engine. The one consumer takes everything there is at once; while it waits and ``direct`` is set, a frame is
sent without it. After ``close`` (the client is gone) frames are dropped and nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.server.direct_send import DirectSend
from render_tier.protocol.errors import ApiError


class Outbox:
    __slots__ = (
        "_frames", "_loop", "_max_frames", "_on_drained", "_waiter", "closed", "direct", "ended", "error",
        "taken_at", "unseen",
    )  # fmt: skip

    def __init__(self, max_frames: int) -> None:
        self._max_frames = max_frames
        self._frames: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._on_drained: list[Callable[[], None]] = []
        self.direct: DirectSend | None = None
        """How a frame is sent at once, from the moment that the client has the first."""
        self.ended = False
        self.closed = False
        self.error: ApiError | None = None
        """Set at the end of a request that failed."""
        self.unseen = True
        """The client has not been handed anything yet, so an error can still be its HTTP status."""
        self.taken_at = self._loop.time()
        """When the client was last handed anything, on the loop's clock."""

    def __repr__(self) -> str:
        flags = f"ended={self.ended} closed={self.closed} error={self.error!r}"
        return f"<Outbox frames={len(self._frames)} {flags}>"

    @property
    def empty(self) -> bool:
        return not self._frames

    @property
    def full(self) -> bool:
        return len(self._frames) >= self._max_frames and not self.closed and not self.ended

    def put(self, frame: bytes) -> None:
        if self.closed or self.ended:
            return
        if self.direct is not None and self._waiter is not None:
            # The consumer waits, so there are no frames before this one and nothing is being sent.
            self.taken_at = self._loop.time()
            if not self.direct(frame):
                self._wake()
            return
        self._frames.append(frame)
        self._wake()

    def when_drained(self, tell: Callable[[], None]) -> None:
        """``tell`` is called once, when the client has taken what is there now or will never."""
        self._on_drained.append(tell)

    def end(self) -> None:
        """Nothing more will come. What was put before is still delivered."""
        if not self.ended:
            self.ended = True
            self._wake()
            self._drained()

    def fail(self, error: ApiError, last_words: bytes) -> None:
        """End with ``error``: as the only answer if the client has not been handed anything (frames that wait
        are dropped), else with ``last_words`` after what it already has."""
        if self.ended:
            return
        if self.unseen:
            self._frames.clear()
        else:
            self.put(last_words)
        self.error = error
        self.end()

    def close(self) -> None:
        self.closed = True
        self._frames.clear()
        self._wake()
        self._drained()

    async def next(self) -> bytes | None:
        """The frames that wait, joined; None when there will be no more (then look at ``error``)."""
        while not self._frames:
            if self.ended or self.closed:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
            if self.direct is not None:
                await self.direct.finish()
        frames, self._frames = self._frames, []
        self.unseen = False
        self.taken_at = self._loop.time()
        if self._on_drained:
            self._drained()
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _drained(self) -> None:
        waiting, self._on_drained = self._on_drained, []
        for tell in waiting:
            tell()
