"""Which members an operator has taken out of work, agreed on by all workers of one server.

Workers share nothing but a directory, so there the list is a file: whoever is told writes it, everybody reads
it now and then. A single worker keeps it to itself. It does not outlive the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import structlog

from orchestrator.core.membership import Key

log = structlog.get_logger(__name__)


class _Drains(msgspec.Struct):
    server: bool = False
    members: list[Key] = msgspec.field(default_factory=list)


class Drains:
    """``on_change`` is told whether the server itself is drained, and which members are. ``directory`` None:
    there are no other workers. ``interval``: seconds after which the others' word is read."""

    def __init__(
        self, directory: Path | None, interval: float, on_change: Callable[[bool, frozenset[Key]], None]
    ) -> None:
        self._path = None if directory is None else directory / "drained.json"
        self._interval = interval
        self._on_change = on_change
        self._now = _Drains()
        self._lock = asyncio.Lock()

    async def follow(self) -> None:
        """Runs until cancelled; ends at once for a single worker."""
        while self._path is not None:
            async with self._lock:
                self._take(await asyncio.to_thread(self._read, self._path))
            await asyncio.sleep(self._interval)

    async def server(self, drained: bool) -> None:
        async with self._lock:
            await self._put(msgspec.structs.replace(await self._latest(), server=drained))

    async def members(self, keys: Collection[Key], drained: bool) -> None:
        async with self._lock:
            latest = await self._latest()
            members = set(latest.members)
            members = members | set(keys) if drained else members - set(keys)
            await self._put(msgspec.structs.replace(latest, members=sorted(members)))

    async def _latest(self) -> _Drains:
        return self._now if self._path is None else await asyncio.to_thread(self._read, self._path)

    async def _put(self, drains: _Drains) -> None:
        if self._path is not None:
            await asyncio.to_thread(self._write, self._path, drains)
        self._take(drains)

    def _take(self, drains: _Drains) -> None:
        self._now = drains
        self._on_change(drains.server, frozenset(drains.members))

    def _read(self, path: Path) -> _Drains:
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Drains)
        except FileNotFoundError:
            return _Drains()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("drained members cannot be read; they stay as they were", error=str(error))
            return self._now

    @staticmethod
    def _write(path: Path, drains: _Drains) -> None:
        """Whole or not at all."""
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(drains))
        new.replace(path)
