"""Structured logs: one line per event on standard output, of this package and of the server that runs it."""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal

import structlog

SERVER_LOGGERS: Final = ("uvicorn", "uvicorn.error", "uvicorn.access")


def configure_logging(level: str, form: Literal["json", "console"]) -> None:
    """Once per process, before its server starts (with ``log_config=None``)."""
    as_console = form == "console"
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    last: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_console:
        last.append(structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty()))
    else:
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in SERVER_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
