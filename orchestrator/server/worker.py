"""gunicorn's worker process as ours."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from gunicorn.arbiter import Arbiter
from uvicorn_worker import UvicornWorker

from orchestrator.server.serving import OrchestratorServer


class OrchestratorWorker(UvicornWorker):  # type: ignore[misc]
    """Its options are set in the master, before a worker exists."""

    CONFIG_KWARGS: dict[str, Any] = {}  # noqa: RUF012  (the base class's own protocol)

    async def _serve(self) -> None:
        self.config.app = self.wsgi
        server = OrchestratorServer(self.config, self.wsgi, self.wsgi.state.settings.server.grace)
        # gunicorn sends it to workers when it is told to stop at once; uvicorn does not listen for it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGQUIT, setattr, server, "should_exit", True)
        await server.serve(sockets=self.sockets)
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
