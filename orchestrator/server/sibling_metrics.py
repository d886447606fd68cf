"""The metrics of several worker processes as one exposition, each sample with its ``worker``, a process id.

A worker gives its own on a Unix socket in a directory that all of them know; whichever answers ``/metrics``
asks the others. One that does not answer in time, or not to the end, is left out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

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


class Siblings:
    """``exposition`` gives this process's own metrics."""

    def __init__(self, directory: Path, exposition: Callable[[], bytes], answer_within: float) -> None:
        self._directory = directory
        self._exposition = exposition
        self._answer_within = answer_within
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._tell, socket_of(self._directory, os.getpid()))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.to_thread(socket_of(self._directory, os.getpid()).unlink, missing_ok=True)

    async def all(self) -> bytes:
        """The exposition of all workers."""
        paths = await asyncio.to_thread(lambda: sorted(self._directory.glob("*.sock")))
        told = await asyncio.gather(*(self._ask(path) for path in paths))
        workers = {path.stem: text for path, text in zip(paths, told, strict=True) if text is not None}
        registry = CollectorRegistry()
        registry.register(_Merged(workers))
        return generate_latest(registry)

    async def _ask(self, path: Path) -> str | None:
        if path == socket_of(self._directory, os.getpid()):
            return self._exposition().decode()
        try:
            async with asyncio.timeout(self._answer_within):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    told = await reader.read()
                finally:
                    writer.close()
        except OSError:  # a time-out is one
            return None
        return told.removesuffix(END).decode(errors="replace") if told.endswith(END) else None

    async def _tell(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._exposition() + END)
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
