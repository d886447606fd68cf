"""WebSocket sessions of derender: connections in, `derendering.session` between, answers out.

One message of a connection is worked on at a time, and the next is read only when its answer has been
written. So a client that does not read its answers is not read either, and what waits for either side is
bounded by one message and the transport's buffers. A message is worked on in the event loop, a few tokens at
a stretch, so that no other connection waits for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from render_tier.derendering.session import AnswerOut, Budget, Session, encoded, parts
from render_tier.protocol.errors import ApiError, Unavailable
from render_tier.protocol.session import MOVING, SESSION_PATH, Frame
from render_tier.server.pools import Overloaded
from render_tier.server.replies import Reply, error_reply, refuse_handshake
from render_tier.server.runtime import Runtime
from render_tier.settings import Settings

log = structlog.get_logger()

GOING_AWAY: Final = 1001
UNREADABLE: Final = 1007
INTERNAL: Final = 1011
REASON_BYTES: Final = 123
"""What a close frame has room for (RFC 6455, 5.5 and 5.5.1)."""
TELL_SECONDS: Final = 1.0
"""How long clients get to take the message that they must move."""
SHORT_BYTES: Final = 512
"""A message of a few tokens: dividing it takes longer than it does."""


class Ending(NamedTuple):
    """What the client is told when its connection is closed."""

    code: int
    reason: str


class Sessions:
    """ASGI: takes the WebSockets of its path; everything else goes to ``inner``."""

    def __init__(self, inner: ASGIApp, runtime: Runtime, settings: Settings) -> None:
        self._inner = inner
        self._runtime = runtime
        self._settings = settings
        self._budget = Budget(settings.max_session_streams, settings.max_session_bytes)
        self._open: dict[Session, Callable[[], Awaitable[None]]] = {}
        self._answered = 0
        self._turns = _Turns()
        self._changed = asyncio.Event()
        runtime.on_drain.append(self.drain)
        runtime.metrics.on_refresh.append(self._show)

    @property
    def budget(self) -> Budget:
        return self._budget

    def __len__(self) -> int:
        return len(self._open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._inner(scope, receive, send)
            return
        refusal = self._refusal(scope["path"])
        if refusal is not None:
            await refuse_handshake(refusal, receive, send)
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        await self._serve(receive, send)

    async def drain(self) -> None:
        """Tell every client that it must move, and wait until all have, or until the time for it is over."""
        for session in self._open:
            session.moving = True
        # Who is gone or does not read cannot be told, and sees the connection close.
        telling = [asyncio.ensure_future(tell()) for tell in self._open.values()]
        if telling:
            await asyncio.wait(telling, timeout=TELL_SECONDS)
            for told in telling:
                told.cancel()
            await asyncio.gather(*telling, return_exceptions=True)
        try:
            async with asyncio.timeout(self._settings.session_drain_seconds):
                while any(len(session) for session in self._open):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("streams_left_behind", streams=self._budget.streams)

    def _refusal(self, path: str) -> Reply | None:
        if path != SESSION_PATH or not self._settings.max_sessions:
            return Reply(404, b'{"detail":"Not Found"}')
        if self._runtime.service is None or self._runtime.draining:
            return error_reply(Unavailable("the model is loading, or the server is about to stop"))
        if len(self._open) >= self._settings.max_sessions:
            self._runtime.metrics.refused.labels("sessions").inc()
            return error_reply(
                Overloaded(f"{self._settings.max_sessions} sessions are open, the most", retry_after=1)
            )
        return None

    async def _serve(self, receive: Receive, send: Send) -> None:
        service = self._runtime.service
        assert service is not None
        session = Session(
            service.derenderer,
            self._budget,
            max_frames=self._settings.max_session_frames,
            snapshot_tokens=self._settings.session_snapshot_tokens,
            idle_seconds=self._settings.session_idle_seconds,
            clock=asyncio.get_running_loop().time,
            on_open=self._runtime.tracing.stream,
        )

        async def tell() -> None:
            await send({"type": "websocket.send", "text": MOVING.decode()})

        self._open[session] = tell
        ending: Ending | None = Ending(INTERNAL, "internal error")
        try:
            ending = await self._converse(session, receive, send)
        except TimeoutError:
            idle = self._settings.session_idle_seconds
            ending = Ending(GOING_AWAY, f"no message for {idle:g} seconds")
        except OSError:
            ending = None  # the client is gone
        except Exception:
            log.exception("session_failed")
        finally:
            del self._open[session]
            session.close()
            self._changed.set()
        if ending is not None:
            await _close(send, ending)

    async def _converse(self, session: Session, receive: Receive, send: Send) -> Ending | None:
        """How to close; None when there is nobody to tell."""
        async with _IdleLimit(self._settings.session_idle_seconds) as limit:
            while True:
                limit.seen()
                message = await receive()
                if message["type"] != "websocket.receive":
                    return None
                ending = await self._exchange(session, message, send)
                if ending is not None:
                    return ending

    async def _exchange(self, session: Session, message: Message, send: Send) -> Ending | None:
        """A message and its answer; how to close, if that was the end."""
        text = message.get("text")
        data: str | bytes = message["bytes"] if text is None else text
        try:
            answer = await self._answer(session, data)
        except ApiError as error:
            return Ending(UNREADABLE, " ".join(error.message.split()))  # in one line
        self._answered += 1
        self._changed.set()
        if answer:
            # In kind: who sends bytes is spared the coding of text.
            reply = {"bytes": answer} if text is None else {"text": answer.decode()}
            await send({"type": "websocket.send", **reply})
        return None

    async def _answer(self, session: Session, data: str | bytes) -> bytes:
        """Others get their turn between two parts of a long message."""
        if len(data) <= SHORT_BYTES:
            return session.receive(data)
        settings = self._settings
        answers: list[AnswerOut] = []
        for frames, weight in parts(await self._frames(session, data), settings.session_turn_tokens):
            if weight > settings.session_inline_tokens:
                work = partial(session.answers, frames)
                try:
                    answers += await self._runtime.pools["derender"].run(work)
                except Overloaded as error:
                    answers += session.refused(frames, error)
                continue
            await self._turns.take()
            answers += session.answers(frames)
        return encoded(answers)

    async def _frames(self, session: Session, data: str | bytes) -> list[Frame]:
        """Of a message that takes long to decode, in a thread. When there is none free it is decoded here:
        streams are refused one by one, and the message is not known to be about any yet."""
        if len(data) > self._settings.inline_body_bytes:
            with contextlib.suppress(Overloaded):
                return await self._runtime.pools["derender"].run(partial(session.frames, data))
        return session.frames(data)

    def _show(self) -> None:
        metrics = self._runtime.metrics
        metrics.sessions.set(len(self._open))
        metrics.session_streams.set(self._budget.streams)
        metrics.session_bytes.set(self._budget.bytes)
        metrics.session_messages.inc(self._answered)
        self._answered = 0


class _Turns:
    """One part of a long message in each pass of the event loop, whatever connection it came by: what has
    arrived meanwhile, a render perhaps, waits for one part and not for those of all connections."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its connection is gone
                turn.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._taken = False


class _IdleLimit:
    """Raises TimeoutError in its body when `seen` has not been called for ``seconds``: one timer for many
    calls, where a time-out for each would cost as much as a token."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._check)

    def seen(self) -> None:
        self._last = self._loop.time()

    def _check(self) -> None:
        left = self._last + self._seconds - self._loop.time()
        if left <= 0:
            self._timeout.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_later(left, self._check)

    async def __aenter__(self) -> _IdleLimit:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(*error)


async def _close(send: Send, ending: Ending) -> None:
    reason = ending.reason.encode()[:REASON_BYTES].decode(errors="ignore")
    try:
        await send({"type": "websocket.close", "code": ending.code, "reason": reason})
    except (OSError, RuntimeError):
        return  # closed by the other side in the meantime
