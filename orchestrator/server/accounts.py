"""Counting what each key has under way and begins: in one process, or for all workers of a server together.

Workers share nothing but a directory, so there a key's books are a file. Whoever counts locks it, for some
microseconds; a process that ends loses its lock, and what it had under way no longer counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from orchestrator.core.keys import Grant
from orchestrator.core.rate import Books, Limits

log = structlog.get_logger(__name__)

T = TypeVar("T")

LONGEST: Final = 65_536
"""Of books, in bytes: those of some thousand processes."""


class Account(Protocol):
    def begin(self, now: float) -> float:
        """As ``Books.begin``."""

    def end(self) -> None: ...


def account_of(grant: Grant, directory: Path | None) -> Account:
    """``directory`` None: there are no other workers."""
    limits = Limits(grant.concurrent_requests, grant.requests_per_minute)
    if directory is None or limits == Limits():
        return OwnAccount(limits)
    name = hashlib.sha256(msgspec.json.encode([grant.name, limits])).hexdigest()[:32]
    return SharedAccount(directory / f"{name}.account", limits)


class OwnAccount:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._books = Books()

    def __repr__(self) -> str:
        return f"<OwnAccount {self._limits} {self._books}>"

    def begin(self, now: float) -> float:
        return self._books.begin(self._limits, 0, now)

    def end(self) -> None:
        self._books.end(0)


class SharedAccount:
    """Made in the worker that uses it. ``begin`` needs a clock that all workers read."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._process = os.getpid()
        self._alone = Books()
        """Where the file cannot be used."""

    def __repr__(self) -> str:
        return f"<SharedAccount {self._path.name} {self._limits}>"

    def begin(self, now: float) -> float:
        def change(books: Books) -> float:
            wait = books.begin(self._limits, self._process, now)
            if wait == math.inf and _drop_dead(books):
                wait = books.begin(self._limits, self._process, now)
            return wait

        return self._in_books(change)

    def end(self) -> None:
        self._in_books(lambda books: books.end(self._process))

    def _in_books(self, change: Callable[[Books], T]) -> T:
        try:
            return self._in_file(change)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("a key is counted in this worker alone", error=str(error))
            return change(self._alone)

    def _in_file(self, change: Callable[[Books], T]) -> T:
        # Opened anew each time: the lock belongs to what was opened.
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            old = os.read(file, LONGEST)
            books = msgspec.json.decode(old, type=Books) if old else Books()
            result = change(books)
            os.pwrite(file, msgspec.json.encode(books).ljust(len(old)), 0)
        finally:
            os.close(file)
        return result


def _drop_dead(books: Books) -> bool:
    """Whether there were any."""
    dead = [process for process in books.active if not _alive(process)]
    for process in dead:
        del books.active[process]
    return bool(dead)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
