"""The uvicorn server, with an end for answers that outlast the grace of a shutdown.

uvicorn alone would cancel them, which a client sees as a connection that breaks without a word. Here they end
when the grace is over with an error that says so; uvicorn's own limit is only the net below.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import uvicorn
from starlette.applications import Starlette

from orchestrator.security_settings import ServerTls
from orchestrator.server.services import Services
from orchestrator.settings import Server
from render_tier.http_bounds import bounded_http

LAST_WORDS_SECONDS = 2
"""What sending the errors may take, beyond the grace."""


def server_options(server: Server) -> dict[str, Any]:
    """uvicorn's, for whoever binds the socket."""
    return {
        "loop": "uvloop",
        "http": bounded_http(server.header_bytes, server.header_timeout),
        "ws": "none",
        "access_log": False,
        # Who asks is decided by the address of the connection.
        "proxy_headers": False,
        "server_header": False,
        "log_config": None,
        "log_level": server.log_level,
        "timeout_graceful_shutdown": int(server.grace) + LAST_WORDS_SECONDS,
        "timeout_keep_alive": int(server.keepalive),
        **_tls_options(server.tls),
    }


def _tls_options(tls: ServerTls) -> dict[str, Any]:
    if tls.certificate is None:
        return {}
    options: dict[str, Any] = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    if tls.client_ca is not None:
        options |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


def uvicorn_config(app: Starlette, server: Server) -> uvicorn.Config:
    return uvicorn.Config(app, host=server.host, port=server.port, **server_options(server))


class OrchestratorServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Starlette, grace: float) -> None:
        super().__init__(config)
        self._app = app
        self._grace = grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services: Services = self._app.state.services
        end = asyncio.get_running_loop().call_later(self._grace, services.end_exchanges)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()
