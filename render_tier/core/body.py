"""The interface between the machine and the parsers of call bodies."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

from render_tier.core.tool_schema import ToolSchemas


class Status(IntEnum):
    RUNNING = 0
    DONE = 1
    FAILED = 2


class Calls(Protocol):
    """Where a body reports what it reads. Order: start, any number of argument pieces, end.

    ``tools``: the request's tools, for formats whose values have no types of their own.
    """

    @property
    def tools(self) -> ToolSchemas: ...

    def call_start(self, name: str, written_id: str = "") -> None: ...

    def call_arguments(self, text: str) -> None: ...

    def call_end(self, complete: bool) -> None: ...


class Body(Protocol):
    """The parser of one call body, fed text in any pieces.

    Until a body is ``committed`` it reports nothing, and it may still fail: then the machine gives its
    ``raw`` text back to the client as ordinary text. A committed body never fails; it ends the call
    instead.
    """

    status: Status
    committed: bool

    @property
    def raw(self) -> str:
        """All text read so far, marker included, while not committed; empty afterwards."""

    def feed(self, text: str, start: int, calls: Calls) -> int:
        """Read ``text[start:]`` and return the index of the first character not consumed (``len(text)`` while
        running). Sets ``status``."""

    def plain(self, text: str) -> str | None:
        """The short way of `feed` for most tokens of most calls: the argument text to be passed on now, when
        ``text`` (not empty) was read as the inside of a value, having nothing in it that may mean anything
        else; None when it is for `feed`. Asked only of a committed body."""

    def finish(self, calls: Calls) -> None:
        """The output ends here: end the call, or fail. Leaves ``status`` DONE or FAILED."""

    def close(self, calls: Calls) -> None:
        """A marker token of the state's ``on`` ends the text here. As `finish`, but nothing was cut."""

    def dump(self) -> Any:
        """The state as a msgpack-able value; `BodyFormat.load` is the inverse."""


class RoutedBody(Body, Protocol):
    """A body whose verdict is a name: ``route``, a key of its state's ``routes``, valid once DONE."""

    route: str


class BodyFormat(Protocol):
    """The table entry of a body: what it looks for, and how to make one."""

    def open(self, marker: str, hold_limit: int) -> Body:
        """A new body after ``marker``. Not committed, it holds back at most ``hold_limit`` characters."""

    def load(self, state: Any, hold_limit: int) -> Body:
        """A body from what `Body.dump` gave. Raises `msgspec.ValidationError` or ValueError for other
        values."""
