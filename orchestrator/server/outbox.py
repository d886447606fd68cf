"""What a request has for its client and the client has not yet been sent: frames, then an end or an error.

Producers wait while it is full; that is how a slow client slows the engine. The one consumer takes everything
there is at once. After ``close`` (the client is gone) frames are dropped and nobody waits.
"""

from __future__ import annotations

import asyncio

from render_tier.protocol.errors import ApiError


class Outbox:
    __slots__ = ("_changed", "_drained", "_frames", "_max_frames", "closed", "ended", "error", "unseen")

    def __init__(self, max_frames: int) -> None:
        self._max_frames = max_frames
        self._frames: list[bytes] = []
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self.ended = False
        self.closed = False
        self.error: ApiError | None = None
        """Set at the end of a request that failed."""
        self.unseen = True
        """The client has not been handed anything yet, so an error can still be its HTTP status."""

    def __repr__(self) -> str:
        flags = f"ended={self.ended} closed={self.closed} error={self.error!r}"
        return f"<Outbox frames={len(self._frames)} {flags}>"

    async def put(self, frame: bytes) -> None:
        while len(self._frames) >= self._max_frames and not self.closed and not self.ended:
            self._drained.clear()
            await self._drained.wait()
        self.put_now(frame)

    def put_now(self, frame: bytes) -> None:
        """Without waiting: for the frames that end a stream."""
        if not self.closed and not self.ended:
            self._frames.append(frame)
            self._changed.set()

    def end(self) -> None:
        """Nothing more will come. What was put before is still delivered."""
        if not self.ended:
            self.ended = True
            self._changed.set()
            self._drained.set()

    def fail(self, error: ApiError, last_words: bytes) -> None:
        """End with ``error``: as the only answer if the client has not been handed anything (frames that wait
        are dropped), else with ``last_words`` after what it already has."""
        if self.ended:
            return
        if self.unseen:
            self._frames.clear()
        else:
            self.put_now(last_words)
        self.error = error
        self.end()

    def close(self) -> None:
        self.closed = True
        self._frames.clear()
        self._changed.set()
        self._drained.set()

    async def next(self) -> bytes | None:
        """The frames that wait, joined; None when there will be no more (then look at ``error``)."""
        while not self._frames:
            if self.ended or self.closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        frames, self._frames = self._frames, []
        self._drained.set()
        self.unseen = False
        return frames[0] if len(frames) == 1 else b"".join(frames)
