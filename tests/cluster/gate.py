"""A way to a server that can be shut: bytes towards the server wait, those of its answers go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self._open = asyncio.Event()
        self._open.set()
        self._waiting = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def shut(self) -> None:
        self._waiting.clear()
        self._open.clear()

    async def somebody_waits(self) -> None:
        """Since it was shut, something was sent."""
        await self._waiting.wait()

    def reopen(self) -> None:
        self._open.set()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        for work in (self._carry(reader, outer, held=True), self._carry(inner, writer, held=False)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        try:
            while piece := await reader.read(1 << 16):
                if held and not self._open.is_set():
                    self._waiting.set()
                    await self._open.wait()
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def gate(port: int) -> AsyncIterator[Gate]:
    """Before the server at ``port`` of loopback."""
    made = Gate(port)
    server = await asyncio.start_server(made._meet, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.reopen()
        server.close()
        for task in made._tasks:
            task.cancel()
        await asyncio.gather(*made._tasks, return_exceptions=True)
