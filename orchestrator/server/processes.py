"""Running the application: one process under uvicorn, or several under gunicorn on one listening socket.

The workers are forked from a process that has loaded everything, and share only a directory afterwards: each
has its own connections, health probes, breakers, places (``admission`` counts per process) and metrics (told
together, by worker). SIGTERM drains all of them. SIGHUP reads the settings again, starts workers with them,
and drains the old ones; with settings that cannot be used the old ones are kept, and the workers are started
anew all the same. A single process has no such use of SIGHUP: it ends by it.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
from starlette.applications import Starlette

from orchestrator.logs import configure_logging
from orchestrator.server.app import create_app
from orchestrator.server.serving import (
    LAST_WORDS_SECONDS,
    OrchestratorServer,
    server_options,
    uvicorn_config,
)
from orchestrator.server.sibling_metrics import socket_of
from orchestrator.settings import ConfigError, Settings
from render_tier.forked_workers import keep_stops_for_workers

log = structlog.get_logger(__name__)

WORKER_SILENCE: Final = 120
"""Seconds without a sign of life after which gunicorn replaces a worker."""

SPARE_SECONDS: Final = 30
"""That a worker's silence may outlast its drain."""

YOUNG_OBJECTS: Final = 20_000
"""That are made before the collector looks at them. A token leaves none behind, hundreds of streams that
begin make so many that the library's 700 would walk all of them over and over."""

OLDER_TIMES: Final = 5
"""That younger ones are looked at before older ones are. A request that is over is freed without the
collector; of what is not, as some failures are, little waits for it."""


def serve(settings: Settings, read_again: Callable[[], Settings]) -> int:
    """Until told to stop (SIGTERM, SIGINT). ``read_again`` gives the settings anew for SIGHUP, or raises
    ``ConfigError``. Returns the exit code."""
    _calm_collector()
    if settings.server.workers > 1:
        return _serve_many(settings, read_again)
    app = create_app(settings)
    server = OrchestratorServer(uvicorn_config(app, settings.server), app, settings.server.grace)

    def stop(_signal: int, _frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn takes them over while it runs, and raises those that it got once more at its end.
        signal.signal(number, stop)
    server.run()
    return 0


def _calm_collector() -> None:
    gc.set_threshold(YOUNG_OBJECTS, OLDER_TIMES, OLDER_TIMES)
    gc.collect()
    gc.freeze()
    gc.collect()  # counts what is left: a full collection waits until there is a quarter more


def _serve_many(settings: Settings, read_again: Callable[[], Settings]) -> int:
    # The single process does without gunicorn.
    from gunicorn.app.base import BaseApplication

    from orchestrator.server.worker import OrchestratorWorker

    directory = Path(tempfile.mkdtemp(prefix="pd-orchestrator-"))
    master = os.getpid()

    class Gunicorn(BaseApplication):  # type: ignore[misc]
        in_use: Settings | None = None

        def load_config(self) -> None:
            if self.in_use is None:
                self.in_use = settings
            else:
                self.callable = None  # the application is made anew
                try:
                    self.in_use = read_again()
                except ConfigError as error:
                    log.error("settings not reloaded, the old ones are kept", error=str(error))
                else:
                    configure_logging(self.in_use.server.log_level, self.in_use.server.log_format)
                    log.info("settings reloaded", digest=self.in_use.digest())
            for name, value in _gunicorn_options(self.in_use, directory).items():
                self.cfg.set(name, value)
            OrchestratorWorker.CONFIG_KWARGS = server_options(self.in_use.server)

        def load(self) -> Starlette:
            assert self.in_use is not None
            return create_app(self.in_use, workers_directory=directory)

    keep_stops_for_workers()
    try:
        Gunicorn().run()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        # A worker that exits leaves through here too, and the others still need the directory.
        if os.getpid() == master:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


def _gunicorn_options(settings: Settings, directory: Path) -> dict[str, Any]:
    from orchestrator.server.worker import OrchestratorWorker
    from render_tier.gunicorn_logs import PropagatingLogger

    server = settings.server

    # The end of running requests, then that of their clean-up (``Services.close``).
    drain = math.ceil(2 * server.grace) + 2 * LAST_WORDS_SECONDS
    host = f"[{server.host}]" if ":" in server.host else server.host

    def forget_metrics(_arbiter: object, worker: Any) -> None:
        socket_of(directory, worker.pid).unlink(missing_ok=True)

    return {
        "bind": f"{host}:{server.port}",
        "workers": server.workers,
        "worker_class": OrchestratorWorker,
        "preload_app": True,
        "graceful_timeout": drain,
        # A worker that drains gives no sign of life.
        "timeout": max(WORKER_SILENCE, drain + SPARE_SECONDS),
        "backlog": 2048,
        "loglevel": server.log_level,
        "logger_class": PropagatingLogger,
        "control_socket_disable": True,
        "child_exit": forget_metrics,
    }
