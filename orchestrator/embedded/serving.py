"""The engine's uvicorn server, with an end for requests that outlast the grace of a shutdown.

uvicorn alone would cancel them, with a traceback for each. Here they are aborted when the grace is over, so
that their clients read an answer that says so; uvicorn's own limit is only the net below.
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from orchestrator.embedded.surface import EngineSurface

LAST_WORDS_SECONDS = 2
"""What sending the last answers may take, beyond the grace."""


class EngineServer(uvicorn.Server):
    """``grace``: seconds that running requests have after SIGTERM."""

    def __init__(self, surface: EngineSurface, *, host: str, port: int, log_level: str, grace: int) -> None:
        super().__init__(
            uvicorn.Config(
                surface,
                host=host,
                port=port,
                log_config=None,
                log_level=log_level,
                access_log=False,
                timeout_graceful_shutdown=grace + LAST_WORDS_SECONDS,
            )
        )
        self._surface = surface
        self._grace = grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end = asyncio.get_running_loop().call_later(self._grace, self._surface.abort_all)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()
