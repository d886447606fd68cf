"""What worker processes ask each other: their metrics, which become one exposition, each sample with its
``worker``, a process id; and what one of them knows that a client has asked another for.

A worker answers on a Unix socket in a directory that all of them know. One that does not answer in time, or
not to the end, is left out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

END = b"# EOF\n"
"""Of what a worker tells; an exposition that is cut anywhere lacks it."""

log = structlog.get_logger(__name__)


def socket_of(directory: Path, pid: int) -> Path:
    return directory / f"{pid}.sock"


METRICS: Final = "metrics"

QUESTION_BYTES: Final = 65_536
"""The longest."""


class Siblings:
    """``answers``: by what is asked for, what this process answers when it is given the rest of the question;
    among them its own exposition under ``METRICS``."""

    def __init__(
        self, directory: Path, answers: Mapping[str, Callable[[str], bytes]], answer_within: float
    ) -> None:
        self._directory = directory
        self._answers = answers
        self._answer_within = answer_within
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        path = socket_of(self._directory, os.getpid())
        self._server = await asyncio.start_unix_server(self._tell, path, limit=QUESTION_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.to_thread(socket_of(self._directory, os.getpid()).unlink, missing_ok=True)

    async def exposition(self) -> bytes:
        """The metrics of all workers."""
        told = await self.ask_all(METRICS)
        workers = {worker: text.decode(errors="replace") for worker, text in told.items()}
        registry = CollectorRegistry()
        registry.register(_Merged(workers))
        return generate_latest(registry)

    async def ask_all(self, what: str, about: str = "") -> dict[str, bytes]:
        """Answers by worker, this one's too. ``about`` is one line."""
        paths = await asyncio.to_thread(lambda: sorted(self._directory.glob("*.sock")))
        told = await asyncio.gather(*(self._ask(path, what, about) for path in paths))
        return {path.stem: answer for path, answer in zip(paths, told, strict=True) if answer is not None}

    async def _ask(self, path: Path, what: str, about: str) -> bytes | None:
        if path == socket_of(self._directory, os.getpid()):
            return self._answers[what](about)
        try:
            async with asyncio.timeout(self._answer_within):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(f"{what} {about}\n".encode())
                    told = await reader.read()
                finally:
                    writer.close()
        except OSError:  # a time-out is one
            return None
        return told.removesuffix(END) if told.endswith(END) else None

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._answer_within):
                question = await reader.readuntil(b"\n")
            what, _, about = question.decode().removesuffix("\n").partition(" ")
            writer.write(self._answers[what](about) + END)
        except (OSError, EOFError, asyncio.LimitOverrunError, UnicodeDecodeError, KeyError) as error:
            log.warning("a worker's question is not understood", error=repr(error))
        finally:
            writer.close()


class _Merged(Collector):
    """``workers``: exposition by worker."""

    def __init__(self, workers: dict[str, str]) -> None:
        self._workers = workers

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for worker, text in self._workers.items():
            try:
                families = list(text_string_to_metric_families(text))
            except ValueError as error:
                log.warning("unreadable metrics", worker=worker, error=str(error))
                continue
            for family in families:
                metric = merged.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    metric.add_sample(
                        sample.name, {**sample.labels, "worker": worker}, sample.value, sample.timestamp
                    )
        yield from merged.values()
