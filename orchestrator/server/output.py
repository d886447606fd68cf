"""What one decode attempt of a run gives, from the engine's chunks to the client: coalesce, derender, hand
over.

One output of a run is in derender at a time; chunks that arrive meanwhile become the next. While too many
tokens wait, the engine is not read; while the client's outbox is full, nothing is derendered. That chain is
the back-pressure from client to engine, and what is held on the way is bounded. Every step is a callback of
the one before, so a chunk wakes no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from orchestrator.core.coalescing import Output, Pending
from orchestrator.core.usage import RunUsage
from orchestrator.hops.derender import Derendered
from orchestrator.hops.errors import HopError

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange


class Source(Protocol):
    """Where chunks come from."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Reader(Protocol):
    """What makes chunks for the client. It tells the pump's ``read`` and ``failed`` of its ends."""

    def read(self, output: Output) -> None: ...

    def close(self) -> None: ...


class OutputPump:
    """Of the choice at ``index``, from its first token on.

    After ``finish``, ``on_flushed`` is called when everything has been handed over; ``on_failed`` at the
    first error of derender, after which nothing happens any more. For a whole answer nothing is handed over;
    derender is called only to find a stop string in time. ``on_visible`` is called once, before the first
    output for the client.
    """

    def __init__(
        self,
        exchange: Exchange,
        usage: RunUsage,
        *,
        on_visible: Callable[[], None],
        on_stop_matched: Callable[[], None],
        on_flushed: Callable[[], None],
        on_failed: Callable[[HopError], None],
    ) -> None:
        self._exchange = exchange
        self._services = exchange.services
        self._streaming = exchange.streaming
        self._usage = usage
        self._on_visible = on_visible
        self._on_stop_matched = on_stop_matched
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._pending = Pending(exchange.services.settings.limits.pending_tokens)
        self._stream: Reader | None = None
        self._source: Source | None = None
        self._reading: Output | None = None
        """In derender."""
        self._began = 0.0
        self._blocked = False
        """The client's outbox is full."""
        self._finished = False
        self._visible = False
        self._over = False
        self._idle: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<OutputPump {self._pending!r} finished={self._finished} visible={self._visible}>"

    @property
    def full(self) -> bool:
        return self._pending.full

    def through(self, stream: Reader) -> None:
        self._stream = stream

    def draw_from(self, source: Source) -> None:
        """``source`` is paused while too much is pending."""
        self._source = source

    def put(self, output: Output) -> None:
        idle = self._reading is None and not (self._over or self._blocked)
        if idle and self._pending.empty and not self._exchange.outbox.full:
            # The usual case.
            self._begin(output)
            return
        self._pending.add(output)
        if idle:
            self._next()
        if self._pending.full and self._source is not None:
            self._source.pause()

    async def drained(self) -> None:
        """Wait until everything that was put has been handed over."""
        if self._reading is not None or self._blocked or not self._pending.empty:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def finish(self) -> None:
        """There will be no more output."""
        self._finished = True
        if self._reading is None:
            self._next()

    def close(self) -> None:
        """Nothing is handed over any more."""
        self._over = True
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def read(self, derendered: Derendered) -> None:
        """Derender has answered."""
        output, self._reading = self._reading, None
        assert output is not None
        exchange = self._exchange
        self._services.metrics.derender_calls.observe(perf_counter() - self._began)
        if derendered.model is not None:
            exchange.answer.model = derendered.model
        self._count(output, derendered)
        if self._streaming and not derendered.empty:
            if not self._visible:
                self._visible = True
                self._on_visible()
                exchange.timing.mark("first_output", perf_counter())
            try:
                exchange.emit(derendered.events, self._usage)
            except HopError as error:
                self.failed(error)
                return
        if derendered.finished and output.finish_reason is None:
            # A stop string. What the engine has sent beyond it is nobody's.
            self._pending.take()
            self._on_stop_matched()
        if self._reading is None:
            self._next()

    def failed(self, error: HopError) -> None:
        self._over = True
        self._on_failed(error)

    def _next(self) -> None:
        if self._over or self._blocked:
            return
        if self._pending.empty:
            self._rest()
            return
        if self._exchange.outbox.full:
            self._blocked = True
            self._exchange.outbox.when_drained(self._unblocked)
            return
        was_full = self._pending.full
        output = self._pending.take()
        assert output is not None
        self._begin(output)
        if was_full and self._source is not None:
            self._source.resume()

    def _begin(self, output: Output) -> None:
        self._reading = output
        self._began = perf_counter()
        assert self._stream is not None
        self._stream.read(output)

    def _rest(self) -> None:
        """Everything that was put has been handed over."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._finished:
            self.close()
            self._on_flushed()

    def _unblocked(self) -> None:
        self._blocked = False
        if self._reading is None:
            self._next()

    def _count(self, output: Output, derendered: Derendered) -> None:
        if derendered.completion_tokens is not None:
            self._usage.completion_tokens = derendered.completion_tokens
            self._usage.reasoning_tokens = derendered.reasoning_tokens
        elif self._streaming:
            self._usage.completion_tokens += len(output.token_ids)
