"""When the event loop may do what is a thread's work otherwise: while nobody would wait for it.

Handing a render of a millisecond or two to a thread and back costs 0.4 times as much again, for two wake-ups,
waits for the interpreter lock, and the cold caches of another core. On the loop it would hold up open streams
and other renders; so it is done there only when nothing streams and no render is under way, and one at a
time: what arrived together with it finds a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from render_tier.server.runtime import Runtime

STREAM_SECONDS = 1.0
"""How long after a call of derender its stream is taken to go on."""
MOST_MESSAGES = 64
"""More of them take longer than the size of a body says."""
ROLE = b'"role"'


class IdleLoop:
    def __init__(self, runtime: Runtime, sessions: Callable[[], int], max_bytes: int) -> None:
        """``sessions``: how many are open. ``max_bytes``: of a body."""
        self._runtime = runtime
        self._sessions = sessions
        self._max_bytes = max_bytes
        self._streams_until = 0.0
        self._busy = False

    def streamed(self) -> None:
        """A call of derender has come."""
        self._streams_until = asyncio.get_running_loop().time() + STREAM_SECONDS

    def takes(self, body: bytes) -> bool:
        """Whether this render is to be done at once. If so, no other one before the loop has looked round."""
        if self._busy or len(body) > self._max_bytes or self._sessions():
            return False
        loop, service = asyncio.get_running_loop(), self._runtime.service
        if (
            loop.time() < self._streams_until
            or self._runtime.pools["render"].pending
            or service is None
            or not service.renderer.is_fast
            or body.count(ROLE) > MOST_MESSAGES
        ):
            return False
        self._busy = True
        loop.call_soon(self._look_round)
        return True

    def _look_round(self) -> None:
        self._busy = False
