"""Running the application: one process under uvicorn, or several under gunicorn that share the model."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import ssl
import sys
from typing import Any

import structlog
import uvicorn
from gunicorn.arbiter import Arbiter
from uvicorn_worker import UvicornWorker

from render_tier.forked_workers import keep_stops_for_workers
from render_tier.http_bounds import bounded_http
from render_tier.server.app import RenderApp, create_app
from render_tier.server.memory import keep_freed_memory, share_heaps
from render_tier.server.service import Service
from render_tier.server.sessions import TELL_SECONDS
from render_tier.settings import Settings

log = structlog.get_logger()
EXIT_LOAD_FAILED = 1
SWITCH_SECONDS = 0.0005
"""How long a thread may keep the others from running Python. The event loop asks for its turn after every
system call, so Python's own 5 ms would delay each chunk by as much while a long prompt is rendered."""
WORKER_SILENCE = 120
"""Seconds without a sign of life after which gunicorn replaces a worker; longer than any one render."""


def serve(settings: Settings) -> int:
    """Serve until told to stop (SIGTERM, SIGINT); requests in progress are finished first. Returns the exit
    code."""
    log.info("settings", digest=settings.digest(), **settings.shown())
    sys.setswitchinterval(SWITCH_SECONDS)
    share_heaps(settings.renderer_num_workers)
    if settings.workers > 1:
        return _serve_many(settings)
    return _serve_one(settings)


def server_options(settings: Settings) -> dict[str, Any]:
    """uvicorn's."""
    return {
        "loop": "uvloop",
        "http": bounded_http(settings.max_header_bytes, settings.header_timeout, settings.send_timeout),
        "ws": "websockets-sansio",
        "ws_max_size": settings.max_body_bytes,
        "ws_per_message_deflate": False,
        "lifespan": "on",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": settings.keep_alive_timeout,
        "timeout_graceful_shutdown": settings.shutdown_timeout,
        **_tls_options(settings),
    }


def _tls_options(settings: Settings) -> dict[str, Any]:
    if settings.ssl_certfile is None:
        return {}
    options: dict[str, Any] = {"ssl_certfile": settings.ssl_certfile, "ssl_keyfile": settings.ssl_keyfile}
    if settings.ssl_ca_certs is not None:
        options |= {"ssl_ca_certs": settings.ssl_ca_certs, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


def _leave_to_the_end() -> None:
    """What is loaded now stays: a full garbage collection that looks at it again and again finds nothing and
    stops every stream for 50 ms."""
    gc.collect()
    gc.freeze()
    gc.enable()
    keep_freed_memory()


def _serve_one(settings: Settings) -> int:
    def stop(_: Exception) -> None:
        server.should_exit = True

    app = create_app(settings, on_failure=stop, on_loaded=_leave_to_the_end)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        uds=settings.uds,
        log_config=None,
        **server_options(settings),
    )
    server = DrainingServer(config, app)

    def stop_early(_signal: int, _frame: object) -> None:
        # uvicorn takes the signals over while it runs and, when it has shut down, raises those it got once
        # more; they have done their work, and the exit code is ours to choose.
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_early)
    listener = config.bind_socket()
    address = settings.uds or f"http://{settings.host}:{listener.getsockname()[1]}"
    log.info("listening", address=address, pid=os.getpid())
    server.run(sockets=[listener])
    return EXIT_LOAD_FAILED if app.runtime.failure is not None else 0


class DrainingServer(uvicorn.Server):
    """Lets sessions move elsewhere before it closes their connections."""

    def __init__(self, config: uvicorn.Config, app: RenderApp) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._app.runtime.drain()
        await super().shutdown(sockets)


class RenderWorker(UvicornWorker):  # type: ignore[misc]
    """gunicorn's worker process; its options are set once in the master, before the workers exist."""

    CONFIG_KWARGS: dict[str, Any] = {}  # noqa: RUF012  (the base class's own protocol)

    async def _serve(self) -> None:
        self.config.app = self.wsgi
        server = DrainingServer(self.config, self.wsgi)
        self._install_sigquit_handler()
        await server.serve(sockets=self.sockets)
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)


def _forget_worker(_arbiter: object, worker: UvicornWorker) -> None:
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


def _serve_many(settings: Settings) -> int:
    # The single process does without gunicorn.
    from gunicorn.app.base import BaseApplication

    service = Service.load(settings)
    if service.awaits_fast_engine:
        service.adopt_fast_engine()
    app = create_app(settings, preloaded=service, on_loaded=_leave_to_the_end)
    # What the workers share must not be touched by their collectors either, or its pages are copied.
    _leave_to_the_end()
    RenderWorker.CONFIG_KWARGS = server_options(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    options = {
        "bind": f"unix:{settings.uds}" if settings.uds else f"{host}:{settings.port}",
        "workers": settings.workers,
        "worker_class": RenderWorker,
        "preload_app": True,
        # Sessions move first, then requests in progress get their time; nobody is killed in between.
        "graceful_timeout": math.ceil(TELL_SECONDS + settings.session_drain_seconds)
        + settings.shutdown_timeout
        + 1,
        "timeout": WORKER_SILENCE,
        "loglevel": settings.log_level,
        "logger_class": "render_tier.gunicorn_logs.PropagatingLogger",
        "control_socket_disable": True,
        "child_exit": _forget_worker,
    }

    class Gunicorn(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in options.items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)

        def load(self) -> RenderApp:
            return app

    keep_stops_for_workers()
    try:
        Gunicorn().run()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
