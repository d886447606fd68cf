"""Hop 4 as a session: WebSockets to render members, many streams on each, in lock step per stream.

A call is a frame and its answer. Frames that are ready at the same moment, or while the socket is busy, leave
in one message, so the cost of a message is shared by the streams that an engine step has moved on. While an
answer is awaited, frames wait for it too, ``HOLD`` at most: the server works on one message at a time, so
most would have waited there. The server answers frames in order, so a queue of waiting calls is all the
bookkeeping there is. It also makes the oldest call's time the bound for all: when that is over, nothing
behind it would be answered sooner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from orchestrator.hops.errors import HopError, NotOffered, TimedOut, Unreachable, error_from_body
from orchestrator.hops.transport import Transport, encode
from orchestrator.hops.websocket import WebSocket
from render_tier.protocol.session import SESSION_PATH, Answer

_decoder = msgspec.json.Decoder(list[Answer])

OnAnswer = Callable[[Answer | None, HopError | None], None]
"""Exactly one of the two is given."""


MOST_FRAMES: Final = 1024
"""Of one message; servers refuse longer ones."""


HOLD: Final = 0.001
"""Seconds."""


class Call:
    """A frame that waits for its answer."""

    __slots__ = ("number", "on_answer", "sent_at")

    def __init__(self, number: int, on_answer: OnAnswer | None, sent_at: float) -> None:
        self.number = number
        self.on_answer = on_answer
        self.sent_at = sent_at

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self.on_answer = None


class Link:
    """One connection. ``streams``: how many are open on it. ``moving``: the server is about to stop.
    ``answer_within``: seconds that an answer may take."""

    def __init__(self, url: str, answer_within: float = 30.0) -> None:
        self.url = url
        self.streams = 0
        self.moving = False
        self.closed = False
        self._socket: WebSocket | None = None
        self._answer_within = answer_within
        self._numbers = 0
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        """To be sent."""
        self._sending = False
        """They are, in the loop's next turn, or wait for others."""
        self._asking = 0
        """How many of them are calls."""
        self._asked = 0
        """Calls that have been sent and not been answered."""
        self._hold: asyncio.TimerHandle | None = None
        self._waiting: deque[Call] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Link {self.url} streams={self.streams} moving={self.moving} closed={self.closed}>"

    def through(self, socket: WebSocket) -> None:
        """Once, when the connection is made."""
        self._socket = socket

    def number(self) -> int:
        """For a new stream."""
        self._numbers += 1
        self.streams += 1
        return self._numbers

    def submit(self, number: int, frame: bytes, on_answer: OnAnswer) -> Call:
        """Send a frame of stream ``number`` that asks for an answer. ``on_answer`` is called later, never
        from in here. The link must not be closed."""
        call = Call(number, on_answer, self._loop.time())
        self._waiting.append(call)
        if self._timer is None:
            self._timer = self._loop.call_later(self._answer_within, self._look)
        self._asking += 1
        self._send(frame)
        return call

    def call(self, frame: dict[str, Any]) -> asyncio.Future[Answer]:
        """``submit`` for a task: the future gives the answer or fails with ``HopError``."""
        future: asyncio.Future[Answer] = self._loop.create_future()

        def on_answer(answer: Answer | None, error: HopError | None) -> None:
            if future.done():
                return
            if answer is not None:
                future.set_result(answer)
            elif error is not None:
                future.set_exception(error)

        if self.closed:
            on_answer(None, self._lost())
        else:
            self.submit(frame["stream"], encode(frame), on_answer)
        return future

    def end(self, number: int) -> None:
        """Close a stream."""
        self.streams -= 1
        if not self.closed:
            self._send(b'{"stream":%d,"close":true}' % number)

    def abandon(self, error: HopError | None = None) -> None:
        """The connection is of no use any more: every call that waits fails."""
        if self._socket is not None:
            self._socket.abort()
        self._lose_calls(error)

    async def close(self) -> None:
        self._lose_calls()
        if self._socket is not None:
            await self._socket.close()

    # ---- Owner of the WebSocket ----------------------------------------------------------------------------

    def message(self, data: bytes) -> None:
        try:
            for answer in _decoder.decode(data):
                self._take(answer)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError):
            self.abandon()  # not what the protocol says
        if self._hold is not None:
            self._write()

    def writable(self) -> None:
        self._write()

    def lost(self) -> None:
        self._lose_calls()

    # ---- small parts ---------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        self._frames.append(frame)
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._write_or_hold)

    def _write_or_hold(self) -> None:
        if self._asked:
            self._hold = self._loop.call_later(HOLD, self._write)
        else:
            self._write()

    def _write(self) -> None:
        self._sending = False
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        self._asked += self._asking
        self._asking = 0
        socket = self._socket
        while self._frames and socket is not None and not socket.blocked:
            frames, self._frames = self._frames[:MOST_FRAMES], self._frames[MOST_FRAMES:]
            socket.send(b"[" + b",".join(frames) + b"]")

    def _take(self, answer: Answer) -> None:
        if answer.moving:
            self.moving = True
            return
        call = self._waiting[0]
        if call.number != answer.stream:
            raise LookupError("answers out of order")
        self._waiting.popleft()
        self._asked -= 1
        if call.on_answer is None:
            return
        if answer.error is not None:
            call.on_answer(None, error_from_body("derender", self.url, answer.error))
        else:
            call.on_answer(answer, None)

    def _lose_calls(self, error: HopError | None = None) -> None:
        self.closed = True
        self._frames.clear()
        self._asked = self._asking = 0
        for timer in (self._timer, self._hold):
            if timer is not None:
                timer.cancel()
        calls, self._waiting = self._waiting, deque()
        for call in calls:
            if call.on_answer is not None:
                call.on_answer(None, error or self._lost())

    def _look(self) -> None:
        """Whether the oldest call has waited too long; once per bound while any waits."""
        self._timer = None
        if not self._waiting:
            return
        left = self._waiting[0].sent_at + self._answer_within - self._loop.time()
        if left <= 0:
            self.abandon(TimedOut("derender", "the derender hop timed out", member=self.url))
        else:
            self._timer = self._loop.call_later(left, self._look)

    def _lost(self) -> HopError:
        return Unreachable("derender", "the connection to the derender tier was lost", member=self.url)


def _silent(base_url: str) -> TimedOut:
    return TimedOut("derender", "the derender tier does not answer", member=base_url)


class SessionPool:
    """The links to all members. A member that refuses the handshake is not asked again for ``recheck``
    seconds. ``clock`` gives seconds."""

    def __init__(
        self,
        transport: Transport,
        *,
        streams_per_connection: int,
        connect_timeout: float,
        answer_within: float,
        heartbeat: float,
        recheck: float,
        clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._streams_per_connection = streams_per_connection
        self._connect_timeout = connect_timeout
        self._answer_within = answer_within
        self._heartbeat = heartbeat
        self._recheck = recheck
        self._clock = clock
        self._links: dict[str, list[Link]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._not_before: dict[str, float] = {}
        self._silent_at: dict[str, float] = {}
        """When a member last let an attempt to connect time out."""

    def __repr__(self) -> str:
        return f"<SessionPool {[link for links in self._links.values() for link in links]}>"

    async def link(self, base_url: str) -> Link | None:
        """A connection with room for another stream; None where the member offers no sessions. Raises
        ``HopError`` when it cannot be reached."""
        if (free := self._free(base_url)) is not None:
            return free
        asked = self._clock()
        async with self._locks.setdefault(base_url, asyncio.Lock()):
            if (free := self._free(base_url)) is not None:
                return free
            if self._silent_at.get(base_url, asked) > asked:
                # The attempt that this one waited for was its own as well.
                raise _silent(base_url)
            if self._clock() < self._not_before.get(base_url, 0.0):
                return None
            try:
                link = Link(base_url, self._answer_within)
                async with asyncio.timeout(self._connect_timeout):
                    link.through(
                        await self._transport.connect(
                            "derender", base_url + SESSION_PATH, link, self._heartbeat
                        )
                    )
            except TimeoutError as error:
                self._silent_at[base_url] = self._clock()
                raise _silent(base_url) from error
            except NotOffered:
                self._not_before[base_url] = self._clock() + self._recheck
                return None
            self._links.setdefault(base_url, []).append(link)
            return link

    async def close(self) -> None:
        links = [link for of_member in self._links.values() for link in of_member]
        self._links.clear()
        # One whose other side is gone takes its whole time to find out.
        await asyncio.gather(*(link.close() for link in links))

    def _free(self, base_url: str) -> Link | None:
        links = self._links.get(base_url, ())
        if any(link.closed for link in links):
            links = self._links[base_url] = [link for link in links if not link.closed]
        for link in links:
            if not link.moving and link.streams < self._streams_per_connection:
                return link
        return None
