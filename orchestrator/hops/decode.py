"""Hop 3: the decode engine's stream of token chunks, or its one JSON reply, as the same sequence of
answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.long_strings import Pieces, written
from orchestrator.core.sse import DONE, NotAnEventStream, SSEDecoder, StreamTooLarge
from orchestrator.hops.connections import Connection, Connections
from orchestrator.hops.errors import (
    Failed,
    Garbled,
    GivenUp,
    HopError,
    TimedOut,
    Unreachable,
    error_from_answer,
)
from orchestrator.hops.generate import ANSWERS, GENERATE
from orchestrator.hops.idle_clock import IdleClock
from orchestrator.hops.messages import EngineAnswer, present
from orchestrator.hops.transport import decoded, garbled

Take = Callable[[EngineAnswer], None]


class DecodeStream:
    """One decode leg. ``run`` carries it out; ``take`` is called with each answer from inside the event
    loop's callbacks, and what it raises ends the leg.

    While paused nothing is read and ``take`` is not called; what one read of the socket held more is kept.
    """

    def __init__(
        self,
        client: DecodeClient,
        url: str,
        body: Pieces,
        headers: Mapping[str, str],
        take: Take,
        first_timeout: float,
    ):
        self._client = client
        self._url = url
        self._body = body
        self._headers = headers
        self._take = take
        self._first_timeout = first_timeout
        self._sse: SSEDecoder | None = None
        """From the moment that the answer is known to be an event stream."""
        self._status = 0
        self._collected: list[bytes] = []
        """Of an answer that is no event stream."""
        self._collected_bytes = 0
        self._held: deque[bytes] = deque()
        self._paused = False
        self._finished = False
        """The choice has its finish reason."""
        self._ended: HopError | bool = False
        """True or an error: the answer has ended so, after what is held."""
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: Connection | None = None
        self._clock: IdleClock | None = None

    def __repr__(self) -> str:
        return f"<DecodeStream {self._url} paused={self._paused} finished={self._finished}>"

    async def run(self) -> None:
        """Until a choice has its finish reason and the stream has ended.

        Raises ``HopError`` when the engine refuses, fails, stops talking, or ends the stream without a finish
        reason. Being cancelled closes the connection.
        """
        client = self._client
        client.on_exchange(+1)
        self._clock = IdleClock(self._first_timeout, client.idle_timeout, self._silent)
        try:
            self._connection = await client.connections.send(
                "decode", "POST", self._url, self._body, self._headers, self
            )
            if self._paused:
                self._connection.pause(self)
            await self._done
        except BaseException:
            if self._done.done() and not self._done.cancelled():
                self._done.exception()  # nobody else asks, when the connection was not made
            if self._connection is not None:
                self._connection.abort(self)
            raise
        finally:
            self._clock.stop()
            self._clock = None
            self._done.cancel()
            client.on_exchange(-1)

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            if self._connection is not None:
                self._connection.pause(self)
            if self._clock is not None:
                self._clock.pause()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._clock is not None:
                self._clock.run()
            self._deliver()
            if not self._paused and self._connection is not None:
                self._connection.resume(self)

    # ---- Handler -------------------------------------------------------------------------------------------

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if status == 200 and kind == "text/event-stream":
            self._sse = SSEDecoder(self._client.max_event_bytes)

    def body(self, piece: bytes) -> None:
        if self._done.done():
            return
        if self._sse is None:
            self._collect(piece)
            return
        try:
            payloads = self._sse.feed(piece)
        except (StreamTooLarge, NotAnEventStream) as error:
            self._fail(garbled("decode", self._url, error))
            return
        if payloads:
            assert self._clock is not None
            self._clock.heard()
            self._held += payloads
            if not self._paused:
                self._deliver()

    def complete(self) -> None:
        self._ended = True
        if self._sse is None:
            self._held.append(b"".join(self._collected))
        self._deliver()

    def failed(self, error: HopError) -> None:
        self._ended = error
        self._deliver()

    # ---- small parts ---------------------------------------------------------------------------------------

    def _collect(self, piece: bytes) -> None:
        """Of an error no more than the bound is looked at; of a reply no more is taken."""
        limit = self._client.max_event_bytes if self._status == 200 else self._client.max_error_bytes
        room = limit - self._collected_bytes
        if len(piece) > room and self._status == 200:
            self._fail(
                Garbled(
                    "decode",
                    "the decode tier's answer is too large",
                    detail=f"over {limit} bytes",
                    member=self._url,
                )
            )
            return
        self._collected.append(piece[:room])
        self._collected_bytes += min(len(piece), room)
        if self._collected_bytes >= limit and self._status != 200:
            self._refused(b"".join(self._collected), is_cut=True)

    def _deliver(self) -> None:
        """What is held, unless paused; then the end, if there was one."""
        held = self._held
        try:
            while held and not self._paused and not self._done.done():
                payload = held.popleft()
                if self._status != 200:
                    self._refused(payload)
                elif payload == DONE and self._sse is not None:
                    self._end(None)
                else:
                    answer = _read(self._url, payload)
                    if answer.choices and answer.choices[0].finish_reason is not None:
                        self._finished = True
                    self._take(answer)
        except Exception as error:
            # The parser of HTTP, which calls this, would wrap it.
            self._fail(error)
            return
        if self._ended and not held and not self._paused:
            self._end(None if self._ended is True else self._ended)

    def _refused(self, body: bytes, *, is_cut: bool = False) -> None:
        self._fail(error_from_answer("decode", self._url, self._status, body, is_cut=is_cut))

    def _end(self, error: HopError | None) -> None:
        if error is None and not self._finished:
            error = (
                Garbled("decode", "the decode engine's answer is not complete", member=self._url)
                if self._sse is None
                else Unreachable("decode", "the decode stream ended early", member=self._url)
            )
        if error is not None:
            self._fail(error)
        elif not self._done.done():
            self._done.set_result(None)
            if self._connection is not None:
                self._connection.let_go(self)

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _silent(self) -> None:
        self._fail(TimedOut("decode", "the decode hop timed out", member=self._url))


class DecodeClient:
    """``first_timeout`` bounds the wait for the first chunk (queueing and KV transfer are in it),
    ``idle_timeout`` each later one; seconds. ``on_exchange(+1 or -1)`` counts open exchanges."""

    def __init__(
        self,
        connections: Connections,
        *,
        first_timeout: float,
        idle_timeout: float,
        max_event_bytes: int,
        max_error_bytes: int,
        on_exchange: Callable[[int], None] = lambda _change: None,
    ) -> None:
        self.connections = connections
        self.first_timeout = first_timeout
        self.idle_timeout = idle_timeout
        self.max_event_bytes = max_event_bytes
        self.max_error_bytes = max_error_bytes
        self.on_exchange = on_exchange

    def decode(
        self,
        base_url: str,
        request: Mapping[str, Any],
        headers: Mapping[str, str],
        take: Take,
        *,
        first_timeout: float | None = None,
    ) -> DecodeStream:
        """``first_timeout`` of this leg, where it is another."""
        wait = self.first_timeout if first_timeout is None else first_timeout
        return DecodeStream(self, base_url + GENERATE, written(request), headers, take, wait)


def _read(url: str, payload: bytes) -> EngineAnswer:
    """Raises for what is no answer to a request for one choice, or says that the engine gave it up."""
    answer = decoded(ANSWERS, "decode", url, payload)
    error = present(answer.error) if len(answer.error) else None
    if error is not None:
        detail = bytes(error)[:2000].decode("utf-8", "replace")
        raise Failed("decode", "the decode engine failed", retry_safe=True, detail=detail, member=url)
    if not answer.choices:
        return answer
    if len(answer.choices) > 1:
        raise Garbled("decode", "the decode engine answered several choices to a request for one", member=url)
    reason = answer.choices[0].finish_reason
    if reason == "abort":
        raise GivenUp("decode", "the decode engine gave the request up", detail=reason, member=url)
    if reason == "error":
        raise Failed(
            "decode", "the decode engine gave the request up", retry_safe=True, detail=reason, member=url
        )
    return answer
