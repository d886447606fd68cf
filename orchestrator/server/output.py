"""From the engine's chunks of one run to the client: coalesce, derender, hand over.

The reader of the decode stream puts chunks in and waits while too many tokens are pending; the pump takes
what is there, derenders it in one call, and waits while the client's outbox is full. That chain is the
back-pressure from client to engine, and what is held on the way is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from orchestrator.core.coalescing import Output, Pending
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.usage import RunUsage
from orchestrator.hops.derender import Derendered
from orchestrator.server.derender_stream import DerenderStream

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange


class OutputPump:
    """For one decode attempt of the choice at ``index``.

    ``run`` ends after ``finish`` when everything has been handed over, or at the first error of derender. For
    a whole answer nothing is handed over; derender is called only to find a stop string in time.
    """

    def __init__(
        self,
        exchange: Exchange,
        index: int,
        prompt: RenderedPrompt,
        usage: RunUsage,
        *,
        on_visible: Callable[[], None],
        on_stop_matched: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._usage = usage
        self._on_visible = on_visible
        self._on_stop_matched = on_stop_matched
        self._pending = Pending(exchange.services.settings.limits.pending_tokens)
        self._stream = DerenderStream(exchange, index, prompt.fields["token_ids"], len(prompt.token_ids))
        self._wake = asyncio.Event()
        self._space = asyncio.Event()
        self._idle = asyncio.Event()
        self._finished = False
        self._visible = False

    def __repr__(self) -> str:
        return f"<OutputPump {self._pending!r} finished={self._finished} visible={self._visible}>"

    @property
    def full(self) -> bool:
        return self._pending.full

    async def put(self, output: Output) -> None:
        """Waits while too much is pending."""
        self._pending.add(output)
        self._idle.clear()
        self._wake.set()
        while self._pending.full:
            self._space.clear()
            await self._space.wait()

    async def drained(self) -> None:
        """Wait until everything that was put has been handed over."""
        await self._idle.wait()

    def finish(self) -> None:
        """There will be no more output."""
        self._finished = True
        self._wake.set()

    async def run(self) -> None:
        """Raises ``HopError`` when derender fails for good."""
        try:
            while True:
                output = self._pending.take()
                if output is not None:
                    self._space.set()
                    await self._hand_over(output, await self._derender(output))
                elif self._finished:
                    return
                else:
                    self._wake.clear()
                    self._idle.set()
                    await self._wake.wait()
        finally:
            self._stream.close()

    async def _hand_over(self, output: Output, derendered: Derendered) -> None:
        exchange = self._exchange
        self._count(output, derendered)
        if exchange.streaming and not derendered.empty:
            if not self._visible:
                self._visible = True
                self._on_visible()
            exchange.timing.mark("first_output", perf_counter())
            await exchange.emit(derendered.chunk, self._usage)
        if derendered.finished and output.finish_reason is None:
            # A stop string. What the engine has sent beyond it is nobody's.
            self._pending.take()
            self._space.set()
            self._on_stop_matched()

    async def _derender(self, output: Output) -> Derendered:
        exchange, services = self._exchange, self._exchange.services
        began = perf_counter()
        derendered = await self._stream.read(output)
        services.metrics.derender_calls.observe(perf_counter() - began)
        exchange.model = derendered.model or exchange.model
        return derendered

    def _count(self, output: Output, derendered: Derendered) -> None:
        if derendered.completion_tokens is not None:
            self._usage.completion_tokens = derendered.completion_tokens
            self._usage.reasoning_tokens = derendered.reasoning_tokens
        elif self._exchange.streaming:
            self._usage.completion_tokens += len(output.token_ids)
